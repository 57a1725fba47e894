"""The interface of every tensor contract, and the tensors that contracts make. Never does I/O."""

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from openai_frontend.generation import CompletionDelta, GenerationRequest

TensorInput = tuple[str, tuple[int, ...], bytes]  # Triton's datatype, shape, raw bytes

# Triton's integer and float datatypes as type codes of the standard library's array
_ARRAY_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip


# What is more than a field: the name that `supports` knows -> what it is
ABILITIES: Mapping[str, str] = {
    "top_logprobs": "The log probabilities of tokens beside those of the answer.",
    "logprob_ids": "The ids of the tokens whose log probabilities are told.",
    "running_counts": "The count of tokens so far, with each response.",
}


class Outputs(Protocol):
    """One response of a model: its output tensors by name."""

    @property
    def final(self) -> bool:
        """True on the last response of a request."""

    def item(self, name: str, /) -> Any:
        """The first element of an output; None where the response has no such output."""

    def tolist(self, name: str, /) -> Any:
        """Every element of an output, a flat list; None where the response has no such output."""

    def tensor(self, name: str, /) -> Any:
        """The output as a buffer; None where the response has no such output."""


class Contract(Protocol):
    """Encodes a request into a model's inputs and decodes its responses."""

    @property
    def derives(self) -> frozenset[str]:
        """What of an answer the model does not report; names of `derived_outputs.DERIVED`."""

    @property
    def extra_args(self) -> frozenset[str] | None:
        """The names that `SamplingParams.extra_args` may hold; None: the model takes any."""

    def supports(self, field: str) -> bool:
        """True where the model can honour this field of GenerationRequest or SamplingParams, a
        kind of constraint ("structured_outputs.regex"), or one of `ABILITIES`.
        """

    def encode(self, request: GenerationRequest) -> dict[str, TensorInput]:
        """The inputs of one request, only those that the model declares."""

    def decoder(self, request: GenerationRequest) -> Callable[[Outputs], CompletionDelta]:
        """What tells for each response to this request what it adds to the answer."""

    def text_output(self, request: GenerationRequest) -> str | None:
        """The output that holds the text where a response to this request holds nothing else
        until the last one; None where it may.
        """


class DeclaredInputs:
    """The inputs of a model's config; makes tensors of the declared datatype and rank."""

    def __init__(
        self, config: Mapping[str, Any], renamed: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`renamed`: our name -> the model's, where they differ."""
        self._declared = {tensor["name"]: tensor for tensor in config.get("input", ())}
        self._renamed = renamed
        self._datatypes = {
            name: _datatype(tensor["data_type"]) for name, tensor in self._declared.items()
        }
        # Triton adds the batch dimension to every declared shape of a model that batches
        batch = (1,) if config.get("max_batch_size", 0) > 0 else ()
        self._before_last = {
            name: (*batch, *[1] * (len(tensor.get("dims", (1,))) - 1))
            for name, tensor in self._declared.items()
        }

    def __contains__(self, name: str) -> bool:
        return self.name(name) in self._datatypes

    def name(self, ours: str) -> str:
        """What the model calls an input."""
        return self._renamed.get(ours, ours)

    def datatype(self, name: str) -> str:
        """The datatype of an input that is declared."""
        return self._datatypes[self.name(name)]

    def required(self) -> frozenset[str]:
        """The model's names of the inputs without which it takes no request."""
        return frozenset(
            name for name, tensor in self._declared.items() if not tensor.get("optional", False)
        )

    def tensor(self, name: str, values: Sequence[Any]) -> TensorInput:
        """A tensor of `values` (text, bool or number) for the input `name`, in its last dimension.

        Raises OverflowError for a number that its datatype cannot hold.
        """
        model = self._renamed.get(name, name)
        datatype = self._datatypes[model]
        return datatype, (*self._before_last[model], len(values)), _raw(datatype, values)

    def rank(self, name: str) -> int:
        """The dimensions of a tensor for the input `name`, the batch's among them."""
        return len(self._before_last[self.name(name)]) + 1

    def true(self, name: str) -> TensorInput:
        """The input `name` as a flag that is set."""
        return self.tensor(name, [True])


def is_writable(datatype: str) -> bool:
    """Whether values of a request can be written as elements of this datatype."""
    return datatype in ("BYTES", "BOOL", "FP16") or datatype in _ARRAY_CODES


def declared_names(config: Mapping[str, Any], side: str) -> frozenset[str]:
    """The names of a config's tensors; `side` is "input" or "output"."""
    return frozenset(tensor["name"] for tensor in config.get(side, ()))


def _datatype(data_type: str) -> str:
    name = data_type.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _raw(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join([_element(str(value)) for value in values])
    if datatype == "BOOL":
        return bytes(map(bool, values))
    if datatype == "FP16":
        return struct.pack(f"<{len(values)}e", *values)
    return array(_ARRAY_CODES[datatype], values).tobytes()


def _element(text: str) -> bytes:
    """One BYTES element: its length as four little-endian bytes, then its bytes."""
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded


class Vocabulary(Protocol):
    """The tokens of one model, as the gateway's copy of its tokenizer knows them."""

    def ids(self, text: str, /) -> Sequence[int]:
        """The tokens of a text, without special tokens around it."""

    def token_text(self, token_id: int, /) -> str | None:
        """The text of one token; None where it is no text of its own, or there is no such token."""

    def unprefixed(self, text: str, /) -> str:
        """The text without what the tokenizer would put before it once more, such as BOS."""

    def plain(self, text: str, /) -> str:
        """The text as it is detokenized: without special tokens."""
