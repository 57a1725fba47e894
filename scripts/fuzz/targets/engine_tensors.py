"""The contents of an in-process model's tensors.

They are read within their limits, or refused with the tensor's name. A part of the text is
repeated, so that short inputs make long tensors.
"""

from dataclasses import dataclass
from typing import Any

from openai_frontend.contracts.sampling_parameters import SamplingParameters
from openai_frontend.engines import input_tensors, pooling_tensors, sampling_parameters
from openai_frontend.engines.engine import EngineError
from openai_frontend.generation import SamplingParams
from schemas.completions import CompletionRequest
from scripts.fuzz.draw import Draw

_CONTEXT = 2048  # tokens
_TIMES = (1, 1, 2, 100, 3000, 200_000)
_MAX_BYTES = 2 * 1024 * 1024
_LONGEST_MESSAGE = 8192

WORDS = (
    *(f'"{field}":' for field in CompletionRequest.model_fields),
    *('"extra_args":{"a":', '"beam_width":', '"lora_name":"a"', '"structured_outputs":"{\\"'),
    *('"json":', '"choice":[', '"structural_tag":"', '"input":[', '"pooling_params":{'),
    *('"dimensions":[', '"token_type_ids":[', "\xff", '"a",', "[],", "{},", "1,", "\\u00e9"),
)
SEEDS = (
    b'\x00\x00{"stop":["a",\xff"b",\xff"c"],"max_tokens":3}',
    b'\x00\x05{"stop":[\xff"@@",\xff"@@"]}',
    b'\x00\x04{"logit_bias":{\xff"-1":1,\xff"2":1}}',
    b'\x00\x00{"logit_bias":{"5":-1},"extra_args":{"a":[1,"b"]},"bad_words":["x"]}',
    b'\x00\x00{"structured_outputs":"{\\"json\\":{\\"type\\":\\"object\\"}}","seed":-1}',
    b'\x00\x03{"structured_outputs":{"choice":[\xff"a",\xff"b"]}}',
    b'\x00\x00{"repetition_detection":{"max_pattern_size":2,"min_count":2},"lora_name":"a"}',
    b'\x01\x00{"input":"a","pooling_params":{"dimensions":[4]}}',
    b'\x01\x05{"input":[\xff1,\xff1]}',
    b'\x02\x03{"input":[\xff1,\xff1],"token_type_ids":[0,1]}',
    b"\x03\x00salt",
)


@dataclass
class _Bytes:
    """A STRING[1] tensor."""

    data: bytes

    @property
    def nbytes(self) -> int:
        return len(self.data) + 4

    def item(self) -> bytes:
        return self.data

    def tolist(self) -> list[Any]:
        return [self.data]


def _read_parameters(text: bytes) -> SamplingParams:
    inputs = {"text_input": _Bytes(b""), "sampling_parameters": _Bytes(text)}
    return input_tensors.read_generation(inputs, "a", _CONTEXT).sampling_params


def _read_salt(text: bytes) -> str | None:
    inputs = {"text_input": _Bytes(b""), "cache_salt": _Bytes(text)}
    return input_tensors.read_generation(inputs, "a", _CONTEXT).cache_salt


_READERS = {
    "sampling_parameters": _read_parameters,
    "embedding_request": lambda text: pooling_tensors.read_embeddings(
        {"embedding_request": _Bytes(text)}, "a", _CONTEXT
    ),
    "score_request": lambda text: pooling_tensors.read_scores(
        {"score_request": _Bytes(text)}, "a", _CONTEXT
    ),
    "cache_salt": _read_salt,
}


def check(data: bytes) -> None:
    draw = Draw(data)
    name, times = draw.choice(list(_READERS)), draw.choice(_TIMES)
    text = _repeated(draw.rest(), times)
    try:
        read = _READERS[name](text)
    except (ValueError, EngineError) as error:  # the second for an adapter that is not there
        message = str(error)
        assert message.startswith((name, "lora_name")), message
        assert len(message) < _LONGEST_MESSAGE + len(data)
        return
    if isinstance(read, SamplingParams):
        again, _ = sampling_parameters.read_text(SamplingParameters().encode(read).encode())
        assert again == read


def _repeated(text: bytes, times: int) -> bytes:
    """Return the text with the part between its first two 0xFF bytes repeated `times` times."""
    head, _, rest = text.partition(b"\xff")
    part, _, tail = rest.partition(b"\xff")
    return head + part * min(times, _MAX_BYTES // (len(part) or 1)) + tail
