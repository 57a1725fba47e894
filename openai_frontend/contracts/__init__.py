"""Tensor contracts: pure translation between the narrow waist and a model's named tensors.

Here are the interface of every contract and the tensors that contracts make. Never does I/O.
"""

import codecs
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Protocol

import orjson

from openai_frontend.generation import (
    CompletionDelta,
    GenerationRequest,
    SamplingParams,
    StructuredOutputs,
)
from openai_frontend.media.modalities import AudioFile, ImageInput, salted_digest

TensorInput = tuple[str, tuple[int, ...], bytes]  # Triton's datatype, shape, raw bytes

# Triton's integer and float datatypes as type codes of the standard library's array
_ARRAY_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip


# Capabilities other than fields that `supports` accepts -> their description
ABILITIES: Mapping[str, str] = {
    "top_logprobs": "Log probabilities of tokens other than the sampled ones.",
    "logprob_ids": "Token ids with the log probabilities.",
    "running_counts": "The number of tokens so far, with each response.",
}
_SUPPORTABLE = {
    *ABILITIES,
    "adapter_path",  # a member of `GenerationRequest.adapter`
    "image_detail",  # of its images
    *(each.name for kind in (GenerationRequest, SamplingParams) for each in fields(kind)),
    *(f"structured_outputs.{each.name}" for each in fields(StructuredOutputs)),
}


def check_supportable(field: str) -> None:
    """Raise ValueError for a name that `Contract.supports` does not know, such as a misspelt one:
    neither yes nor no would be right.
    """
    if field not in _SUPPORTABLE:
        raise ValueError(f"'{field}' is not a field of requests to models")


class Outputs(Protocol):
    """One response of a model: its output tensors by name."""

    @property
    def final(self) -> bool:
        """True on the last response of a request."""

    @property
    def relayed(self) -> int:
        """Tokens of a text that has been written to the client already; else 0."""

    def item(self, name: str, /) -> Any:
        """The first element of an output; None if the response does not have it."""

    def tolist(self, name: str, /) -> Any:
        """All elements of an output as a flat list; None if the response does not have it."""

    def tensor(self, name: str, /) -> Any:
        """The output as a buffer; None if the response does not have it."""


class Contract(Protocol):
    """Encodes a request into a model's inputs and decodes its responses."""

    @property
    def derives(self) -> frozenset[str]:
        """Values that the model does not report; names from `derived_outputs.DERIVED`."""

    @property
    def max_images(self) -> int | None:
        """How many images its input takes per request: 0 without such an input, None for any."""

    @property
    def extra_args(self) -> frozenset[str] | None:
        """The names allowed in `SamplingParams.extra_args`; None if the model takes any."""

    def supports(self, field: str) -> bool:
        """True if the model supports this field of GenerationRequest or SamplingParams, this kind
        of constraint ("structured_outputs.regex"), or this one of `ABILITIES`. Raises ValueError
        for any other name.
        """

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The input tensors of a request; only those that the model declares."""

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """A function that turns each response to this request into a delta."""

    def text_output(self, request: GenerationRequest) -> str | None:
        """The output with the text, if responses before the last hold nothing else but arrays of
        log probabilities that were requested; else None.
        """


class DeclaredInputs:
    """The inputs in a model's config. Makes tensors of the declared datatype and rank."""

    def __init__(
        self, config: Mapping[str, Any], renamed: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`renamed`: our name -> the model's name, if they differ."""
        self._declared = {tensor["name"]: tensor for tensor in config.get("input", ())}
        self._renamed = renamed
        self._datatypes = {
            name: _datatype(tensor["data_type"]) for name, tensor in self._declared.items()
        }
        # Triton adds the batch dimension to every declared shape of a batching model
        batch = (1,) if config.get("max_batch_size", 0) > 0 else ()
        self._before_last = {
            name: (*batch, *[1] * (len(tensor.get("dims", (1,))) - 1))
            for name, tensor in self._declared.items()
        }

    def __contains__(self, name: str) -> bool:
        return self._renamed.get(name, name) in self._datatypes

    def name(self, ours: str) -> str:
        """The model's name of an input."""
        return self._renamed.get(ours, ours)

    def datatype(self, name: str) -> str:
        """The datatype of a declared input."""
        return self._datatypes[self.name(name)]

    def required(self) -> frozenset[str]:
        """The model's names of its required inputs."""
        return frozenset(
            name for name, tensor in self._declared.items() if not tensor.get("optional", False)
        )

    def tensor(self, name: str, values: Sequence[Any]) -> TensorInput:
        """A tensor for the input `name` with `values` (text, bool or number) in its last dimension.

        Raises OverflowError if a number does not fit the datatype.
        """
        model = self._renamed.get(name, name)
        datatype = self._datatypes[model]
        return datatype, (*self._before_last[model], len(values)), _raw(datatype, values)

    def buffer(self, name: str, data: memoryview, elements: int) -> TensorInput:
        """A tensor of the declared datatype, whose last dimension has these `elements`."""
        model = self._renamed.get(name, name)
        return self._datatypes[model], (*self._before_last[model], elements), bytes(data)

    def length(self, name: str) -> int | None:
        """The elements in the last dimension of an input: 0 if it does not exist, None if any."""
        declared = self._declared.get(self.name(name))
        if declared is None:
            return 0
        length = int(declared.get("dims", (1,))[-1])
        return None if length < 0 else length

    def rank(self, name: str) -> int:
        """The number of dimensions of the input `name`, including the batch dimension."""
        return len(self._before_last[self.name(name)]) + 1

    def true(self, name: str) -> TensorInput:
        """The input `name` as a flag that is true."""
        return self.tensor(name, [True])


def is_writable(datatype: str) -> bool:
    """Whether request values can be encoded in this datatype."""
    return datatype in ("BYTES", "BOOL", "FP16") or datatype in _ARRAY_CODES


def declared_names(config: Mapping[str, Any], side: str) -> frozenset[str]:
    """The names of a config's tensors; `side` is "input" or "output"."""
    return frozenset(tensor["name"] for tensor in config.get(side, ()))


def _datatype(data_type: str) -> str:
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _raw(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        # each element: its length as four little-endian bytes, then its bytes
        pieces = []
        for value in values:
            encoded = str(value).encode()
            pieces += [len(encoded).to_bytes(4, "little"), encoded]
        return b"".join(pieces)
    if datatype == "BOOL":
        return bytes(map(bool, values))
    if datatype == "FP16":
        return struct.pack(f"<{len(values)}e", *values)
    return array(_ARRAY_CODES[datatype], values).tobytes()


# Decodes the next bytes of a text; True flushes an incomplete character at its end.
DecodeText = Callable[[bytes, bool], str]


def text_decoder() -> DecodeText:
    """Decodes one answer, whose responses may split characters. Invalid bytes become U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode


class Vocabulary(Protocol):
    """The functions of a model's tokenizer that contracts need. The gateway has a copy of it."""

    def ids(self, text: str, /) -> Sequence[int]:
        """The token ids of a text, without special tokens added."""

    def token_text(self, token_id: int, /) -> str | None:
        """The text of a token; None if it has no text of its own or does not exist."""

    def unprefixed(self, text: str, /) -> str:
        """The text without a prefix that the tokenizer adds itself, such as BOS."""

    def plain(self, text: str, /) -> str:
        """The text without special tokens, as a detokenizer writes it."""


class ZeroTokens:
    """Wraps a contract so that `max_tokens` may be 0: it processes the prompt only.

    Engines refuse to generate no tokens, so it asks for one and drops it.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.supports = contract.supports
        self.derives = contract.derives
        self.extra_args = contract.extra_args
        self.max_images = contract.max_images

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The contract's inputs, with `max_tokens` 1 instead of 0."""
        if request.sampling_params.max_tokens != 0:
            return self._contract.encode(request)
        return self._contract.encode(_for_one_token(request))

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """The contract's decoder, without the extra token."""
        if request.sampling_params.max_tokens != 0:
            return self._contract.decoder(request)
        decode = self._contract.decoder(_for_one_token(request))
        return lambda outputs: _prompt_only(decode(outputs))

    def text_output(self, request: GenerationRequest) -> str | None:
        """None if `max_tokens` is 0."""
        if request.sampling_params.max_tokens == 0:
            return None
        return self._contract.text_output(request)


def media_tensors(
    inputs: DeclaredInputs,
    images: Sequence[ImageInput],
    audio_files: Sequence[AudioFile],
    cache_salt: str | None,
) -> dict[str, TensorInput]:
    """Plain base64, and what the gateway knows of each item if the model takes that."""
    tensors = {}
    if images:
        tensors["image"] = inputs.tensor("image", [image.base64 for image in images])
    if audio_files:
        tensors["audio_file"] = inputs.tensor("audio_file", [each.base64 for each in audio_files])
    if "media_info" in inputs:
        info = [_image_info(image, cache_salt) for image in images]
        info += [_audio_info(each, cache_salt) for each in audio_files]
        tensors["media_info"] = inputs.tensor("media_info", [orjson.dumps(info).decode()])
    return tensors


def _image_info(image: ImageInput, cache_salt: str | None) -> Mapping[str, Any]:
    return {
        "kind": "image",
        "digest": salted_digest(image, cache_salt),
        "detail": image.detail,
        "width": image.width,
        "height": image.height,
        "format": image.format,
    }


def _audio_info(file: AudioFile, cache_salt: str | None) -> Mapping[str, Any]:
    return {
        "kind": "audio",
        "digest": salted_digest(file, cache_salt),
        "format": file.format,
        "max_seconds": file.max_seconds,
        "max_samples": file.max_samples,
    }


def _for_one_token(request: GenerationRequest) -> GenerationRequest:
    params = request.sampling_params
    # vLLM rejects a min_tokens above max_tokens. The first token may end the text.
    return replace(request, sampling_params=replace(params, max_tokens=1, min_tokens=0))


def _prompt_only(delta: CompletionDelta) -> CompletionDelta:
    """The delta's part about the prompt. The finish reason is always `length`."""
    return CompletionDelta(
        finish_reason=None if delta.finish_reason is None else "length",
        counts=delta.counts and replace(delta.counts, completion_tokens=0),
        prompt_logprobs=delta.prompt_logprobs,
    )
