"""The bounds of the JSON in the tensor `sampling_parameters`."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from openai_frontend.engines import sampling_parameters
from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import SamplingParams, StructuredOutputs
from openai_frontend.serving.request.sampling import SamplingOptions, sampling_params
from schemas.completions import CompletionRequest
from schemas.response_format import MAX_CONSTRAINT_BYTES
from tests.cpu_time import budget
from tests.fast.serving.fake_model import FakeModel


def read(**given: Any) -> SamplingParams:
    params, _ = sampling_parameters.read_text(json.dumps(given).encode())
    return params


def constraint(size: int) -> dict[str, Any]:
    """A schema of so many bytes as JSON."""
    return {"title": "x" * (size - len('{"title":""}'))}


# What the HTTP API accepts, spelled as long as JSON allows: six bytes per character.
LONGEST: dict[str, Any] = {
    "stop": ["\x01" * 1024] * 16,
    "bad_words": ["\x01" * 1024] * 4,
    "vllm_xargs": {f"a{i}": "x" * 4000 for i in range(16)},
    "logit_bias": {str(i): -99.123456789012345 for i in range(1024)},
    "stop_token_ids": [2**31 - 1] * 1024,
    "allowed_token_ids": [2**31 - 1] * 1024,
    "logprob_token_ids": [2**31 - 1] * 128,
}


def test_longest_request_of_the_http_api_is_accepted():
    """The two bounds were apart: 16 stop strings of 1,024 emoji got a 400 that named the tensor."""
    request = CompletionRequest.model_validate_json(
        json.dumps({"model": "m", "prompt": "a", **LONGEST})
    )
    fields = {name: getattr(request, name) for name in LONGEST}
    fields["extra_args"] = fields.pop("vllm_xargs")

    assert read(**fields).stop == tuple(LONGEST["stop"])


def test_longer_vllm_xargs_are_refused_by_name():
    """With six bytes for each character, they would be more than the tensor may have."""
    values = {"prompt": "a", "vllm_xargs": {f"a{i}": "x" * 4096 for i in range(16)}}
    request = CompletionRequest.model_validate(values)

    with pytest.raises(InvalidRequest, match="at most 65536 bytes of JSON, but got") as refused:
        sampling_params(request, SamplingOptions(max_tokens=1), FakeModel())

    assert refused.value.param == "vllm_xargs"


BOUNDS: dict[str, tuple[Any, Any]] = {
    "stop": (["x" * 1024] * 16, ["x"] * 17),
    "stop_token_ids": ([1] * 1024, [1] * 1025),
    "bad_words": (["x" * 1024] * 4, ["x" * 1024] * 4 + ["x"]),
    "allowed_token_ids": ([1] * 1024, [1] * 1025),
    "logit_bias": (dict.fromkeys(range(1024), 1), dict.fromkeys(range(1025), 1)),
    "logprob_token_ids": ([1] * 128, [1] * 129),
    "extra_args": ({"a": "x" * 4096}, {"a": "x" * 4097}),
    "max_tokens": (2**31 - 1, 2**31),
    "min_tokens": (2**31 - 1, 2**31),
    "seed": (2**63 - 1, 2**63),
    "logprobs": (20, 21),
    "prompt_logprobs": (-1, -2),
    "beam_width": (128, 129),
    "temperature": (2, 2.5),
    "repetition_detection": (
        {"max_pattern_size": 1024, "min_count": 1024},
        {"max_pattern_size": 1025, "min_count": 2},
    ),
    "structured_outputs": (
        {"json": constraint(MAX_CONSTRAINT_BYTES)},
        {"json": constraint(MAX_CONSTRAINT_BYTES + 1)},
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name):
    """A parameter has the same bounds as the HTTP API's field; the error names it."""
    largest, beyond = BOUNDS[name]

    assert getattr(read(**{name: largest}), name) is not None
    with pytest.raises(ValueError, match=f"^sampling_parameters: {name}: "):
        read(**{name: beyond})


def test_error_for_a_union():
    """For a value of several possible types, the error states the bound of its own type."""
    with pytest.raises(ValueError, match="at most 4096 characters"):
        read(extra_args={"a": "x" * 4097})
    with pytest.raises(ValueError, match="at most 16 items"):
        read(stop=["x"] * 17)


def test_structural_tag_of_many_tools():
    """A structural tag may contain a request's tools, which are larger than other constraints."""
    tag = json.dumps(constraint(2 * 1024 * 1024))
    read_as = read(structured_outputs=json.dumps({"structural_tag": tag}))

    assert read_as.structured_outputs == StructuredOutputs(structural_tag=tag)


INNER: dict[str, tuple[str, str]] = {
    "nesting": ("[" * 65, "more than 64 levels of nesting"),
    "strings": (json.dumps({"choice": [""] * 70_000}), "more than 65536 strings"),
    "bytes": (json.dumps({"regex": "x" * 9_000_000}), "the limit is 8912896"),
    "an unknown member": ('{"banana": 1}', "'banana'"),
    "no object": ("[]", "not a JSON object"),
}


@pytest.mark.parametrize("name", INNER)
def test_json_within_the_json(name):
    """The limits on bytes and parts apply to a constraint in JSON text too."""
    text, expected = INNER[name]
    with pytest.raises(
        ValueError, match=rf"^sampling_parameters: structured_outputs: .*{expected}"
    ):
        sampling_parameters.read({"structured_outputs": text})


# Made by their test: together they are large.
FLOODS: dict[str, Callable[[], bytes]] = {
    "stop texts": lambda: json.dumps({"stop": ["@@"] * 1_000_000}).encode(),
    "arrays": lambda: b'{"stop":[' + b"[]," * 2_000_000 + b"[]]}",
    "members": lambda: json.dumps({str(number): 1 for number in range(500_000)}).encode(),
    "biases": lambda: json.dumps({"logit_bias": {f"-{each}": 1 for each in range(7_000)}}).encode(),
    "numbers": lambda: json.dumps({"allowed_token_ids": [1] * 500_000}).encode(),
}


@pytest.mark.parametrize("name", FLOODS)
def test_refusals_are_cheap(name):
    """A refusal blocks the event loop for less than 30 ms, whatever the size of the text."""
    text = FLOODS[name]()

    assert min(refusal_s(text) for _ in range(3)) < budget(0.03)


def refusal_s(text: bytes) -> float:
    started = time.thread_time()
    with pytest.raises(ValueError, match=r"^sampling_parameters: "):
        sampling_parameters.read_text(text)
    return time.thread_time() - started


def test_numbers_and_booleans_as_texts():
    """genai-perf writes them so, and NVIDIA's backend reads them; texts of texts stay texts."""
    text = b'{"max_tokens": "8", "temperature": "0.5", "ignore_eos": "True", "stop": "8"}'

    params, _ = sampling_parameters.read_text(text)

    assert (params.max_tokens, params.temperature, params.ignore_eos) == (8, 0.5, True)
    assert params.stop == ("8",)


@pytest.mark.parametrize("value", ["x", "8.5", "null", "1e400", "[8]", "9" * 40, ""])
def test_texts_that_are_no_number_of_the_field(value):
    """They are refused as the field's other values are."""
    with pytest.raises(ValueError, match=r"^sampling_parameters: max_tokens: "):
        sampling_parameters.read_text(json.dumps({"max_tokens": value}).encode())


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        (b'{"temperature": 0.5, "seed": 3}', True),
        (b'{"temperature": 0.5, "stop": ["a"]}', True),
        (b'{"temperature": 0.5, "stop": "a"}', True),
        (b'{"temperature": 0.5, "stop": ["a"], "stop_token_ids": [1]}', False),
        (b'{"logit_bias": {"3": 1.5}}', False),
        (b'{"structured_outputs": {"json": {"enum": ["a"]}}}', True),
        (b'{"structured_outputs": {"json_object": true}, "bad_words": ["a"]}', False),
        (b'{"structured_outputs": {"regex": "%s"}}' % (b"a" * 8192), False),
    ],
)
def test_only_short_parameters_without_lists_and_objects_are_shared(text, shared):
    """An engine may change a list or an object in place, but not a number or a constraint."""
    one, other = (sampling_parameters.read_text(text) for _ in range(2))

    assert one == other
    assert (one[0] is other[0]) is shared
