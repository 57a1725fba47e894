"""The tensors of other embedding models: text or token ids in, a dense or sparse vector out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy

from openai_frontend.contracts import DeclaredInputs, Outputs, TensorInput
from openai_frontend.errors import (
    InferenceFailed,
    InvalidRequest,
    MalformedOutput,
    ModelUnavailable,
)
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, SparseVector

# Further inputs of encoders -> the value of their elements for an unpadded prompt
_BESIDE_IDS = {"attention_mask": 1, "token_type_ids": 0}
# Our name of an input -> the names it has by default
_PROMPTS = {"text_input": ("text_input",), "prompt_token_ids": ("prompt_token_ids", "input_ids")}
# Types of vectors -> NumPy's; the first needs no conversion. NumPy lacks bfloat16
_FLOATS = {"FP32": "<f4", "FP16": "<f2", "BF16": "<u2", "FP64": "<f8"}
_VECTORS = ("embedding", "embeddings", "sentence_embedding", "text_embedding")
# Outputs of a sparse vector; they need these names, or a mapping in `tensors`
_INDICES, _VALUES = _SPARSE = "sparse_indices", "sparse_values"
_INTEGERS = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}
_NO_VECTOR = memoryview(b"")


class GenericEmbeddingContract:
    """One prompt per request. Raises ModelUnavailable if the model's tensors do not fit.

    A batch dimension does not prove that the model reads more than the first row.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`tensors`: our name -> the model's; "text_input", "prompt_token_ids" or "embedding"."""
        for ours in tensors.keys() - {*_PROMPTS, *_SPARSE, "embedding"}:
            raise ModelUnavailable(f"`tensors` has an unknown name '{ours}' for an embedding model")
        self._inputs = DeclaredInputs(config, tensors)
        self._prompt, self._prompt_name = self._found(tensors)
        self._beside = [name for name in _BESIDE_IDS if name in self._inputs]
        self._sparse = _sparse_vector(config, tensors)
        self._output: str | None = None
        self._length: int | None = None
        if self._sparse is None or _has_vector(config, tensors):
            self._output, self._datatype, self._length = _vector(config, tensors)
        self._check_required()

    @property
    def is_dense(self) -> bool:
        """Whether the model returns a vector of all numbers."""
        return self._output is not None

    @property
    def is_sparse(self) -> bool:
        """Whether the model returns a sparse vector."""
        return self._sparse is not None

    def batch_limit(self, *, tokenized: bool) -> int:
        """One prompt per request."""
        return 1

    def encode(self, requests: Sequence[EmbedRequest]) -> dict[str, TensorInput]:
        """The prompt as the text or ids that the model takes. Raises InvalidRequest without it."""
        (request,) = requests
        if request.dimensions not in (None, self._length):
            message = "This model does not support specifying dimensions."
            raise InvalidRequest(message, param="dimensions", code="unsupported_parameter")
        if self._prompt == "text_input":
            return {self._prompt_name: self._tensor(_text(request))}
        ids = _ids(request)
        beside = {name: [_BESIDE_IDS[name]] * len(ids) for name in self._beside}
        return {self._prompt_name: self._tensor(ids)} | {
            name: self._inputs.tensor(name, values) for name, values in beside.items()
        }

    def decode(self, outputs: Outputs, count: int) -> list[EmbeddingResult]:
        """The vectors; of float32, in the response's own memory. The gateway counts the tokens."""
        result = EmbeddingResult(self._dense(outputs), 0)
        if self._sparse is not None:
            result.sparse = self._sparse.decode(outputs)
        return [result]

    def _dense(self, outputs: Outputs) -> memoryview:
        if self._output is None:
            return _NO_VECTOR
        tensor = outputs.tensor(self._output)
        if tensor is None:
            raise InferenceFailed("The model returned no embedding.")
        view, shape = memoryview(tensor), tuple(tensor.shape) or (0,)
        if prod(shape) != (self._length or shape[-1]):
            size = " x ".join(map(str, shape))
            raise InferenceFailed(f"The model returned {size} numbers instead of one vector.")
        if self._datatype != "FP32":
            return _as_float32(tensor, self._datatype)
        return memoryview(tensor) if view.ndim == 1 else _flat(view)

    def _tensor(self, values: Sequence[Any]) -> TensorInput:
        return self._inputs.tensor(self._prompt_name, values)

    def _found(self, tensors: Mapping[str, str]) -> tuple[str, str]:
        """Our name and the model's name of its prompt."""
        for ours, usual in _PROMPTS.items():
            for name in (tensors[ours],) if ours in tensors else usual:
                if name in self._inputs:
                    return ours, name
        raise ModelUnavailable("none of its inputs is a known prompt; name one in `tensors`")

    def _check_required(self) -> None:
        filled = {self._prompt_name, *(self._beside if self._prompt != "text_input" else ())}
        for name in sorted(self._inputs.required() - filled):
            raise ModelUnavailable(f"its input '{name}' is required, but no request field fills it")


def _flat(view: Any) -> memoryview:
    return view.cast("B").cast("f")  # type: ignore[no-any-return]


def _as_float32(tensor: Any, datatype: str) -> memoryview:
    numbers = numpy.frombuffer(tensor, _FLOATS[datatype])
    if datatype == "BF16":  # the upper half of a float32
        return (numbers.astype("<u4") << 16).view("<f4").data
    return numbers.astype("<f4").data


def is_embedding_model(config: Mapping[str, Any]) -> bool:
    """Whether the names of a model's tensors are those of an embedding model."""
    inputs = {tensor["name"] for tensor in config.get("input", ())}
    outputs = {tensor["name"] for tensor in config.get("output", ())}
    prompts = {name for names in _PROMPTS.values() for name in names}
    vectors = bool(outputs & set(_VECTORS)) or outputs >= set(_SPARSE)
    return bool(inputs & prompts) and vectors and "text_output" not in outputs


@dataclass(frozen=True, slots=True)
class _SparseOutputs:
    """The two outputs of a sparse vector, which have a number for each of its entries."""

    indices: str
    values: str
    datatype: str  # of the indices

    def decode(self, outputs: Outputs) -> SparseVector:
        """Copies them. Raises MalformedOutput."""
        indices, values = outputs.tensor(self.indices), outputs.tensor(self.values)
        if indices is None or values is None:
            raise MalformedOutput("The model returned no sparse vector.")
        integers = numpy.frombuffer(indices, _INTEGERS[self.datatype])
        return SparseVector(integers.copy(), numpy.frombuffer(values, "<f4").copy())


def _sparse_vector(config: Mapping[str, Any], tensors: Mapping[str, str]) -> _SparseOutputs | None:
    """None for a model without these outputs. Raises ModelUnavailable for other types."""
    types = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in config["output"]}
    names = [tensors.get(each, each) for each in _SPARSE]
    if not {*names} <= types.keys():
        if missing := [name for name in names if name in tensors.values() and name not in types]:
            raise ModelUnavailable(f"it has no output '{missing[0]}', which `tensors` names")
        return None
    indices, values = names
    if types[indices] not in _INTEGERS or types[values] != "FP32":
        raise ModelUnavailable(
            f"a sparse vector has indices of {', '.join(_INTEGERS)} and values of FP32, but its "
            f"outputs are {types[indices]} and {types[values]}"
        )
    return _SparseOutputs(indices, values, types[indices])


def _has_vector(config: Mapping[str, Any], tensors: Mapping[str, str]) -> bool:
    """Whether a model with a sparse vector has another one, by name."""
    names = {each["name"] for each in config["output"]}
    return "embedding" in tensors or bool(names & set(_VECTORS))


def _vector(config: Mapping[str, Any], tensors: Mapping[str, str]) -> tuple[str, str, int | None]:
    """The name of the vector output, its datatype, and its length; None if the length varies.

    Without a name, other types than FP32 count only if there is none of it.
    """
    types = {each["name"]: each["data_type"].removeprefix("TYPE_") for each in config["output"]}
    floats = [each for each in config["output"] if types[each["name"]] in _FLOATS]
    numbers = [each for each in floats if types[each["name"]] == "FP32"] or floats
    wanted = (tensors["embedding"],) if "embedding" in tensors else _VECTORS
    named = [each for each in floats if each["name"] in wanted]
    candidates = named or ([] if "embedding" in tensors else numbers)
    if len(candidates) != 1:
        raise ModelUnavailable(
            f"{len(candidates)} of its outputs can be the vector (TYPE_{', TYPE_'.join(_FLOATS)}); "
            "name one as 'embedding' in `tensors`"
        )
    length = int(candidates[0].get("dims", [-1])[-1])
    return candidates[0]["name"], types[candidates[0]["name"]], None if length < 0 else length


def _text(request: EmbedRequest) -> Sequence[str]:
    if request.prompt is None:
        raise InvalidRequest(
            "This model takes inputs as text only, neither token ids nor a truncated input.",
            param=request.param or "input",
        )
    return [request.prompt]


def _ids(request: EmbedRequest) -> Sequence[int]:
    if request.prompt_token_ids is None:
        raise InvalidRequest("This model takes inputs as token ids only.", param="input")
    return request.prompt_token_ids
