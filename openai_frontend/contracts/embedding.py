"""The tensors of any embedding model that is not vLLM's: a text or token ids in, one vector out."""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from openai_frontend.contracts.contract import DeclaredInputs, Outputs, TensorInput
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.generation import EmbeddingResult, EmbedRequest

# Inputs beside the ids that encoders take, and what each of their elements is for a whole prompt
_BESIDE_IDS = {"attention_mask": 1, "token_type_ids": 0}
# Our name of an input -> those that it goes by where nobody says
_PROMPTS = {"text_input": ("text_input",), "prompt_token_ids": ("prompt_token_ids", "input_ids")}
_VECTORS = ("embedding", "embeddings", "sentence_embedding", "text_embedding")


class GenericEmbeddingContract:
    """One prompt a request. Raises ModelUnavailable for a model that cannot be asked so."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`tensors`: our name -> the model's; "text_input", "prompt_token_ids" or "embedding"."""
        for ours in tensors.keys() - {*_PROMPTS, "embedding"}:
            raise ModelUnavailable(f"`tensors` names a '{ours}', which no embedding has")
        self._inputs = DeclaredInputs(config, tensors)
        self._prompt, self._prompt_name = self._found(tensors)
        self._beside = [name for name in _BESIDE_IDS if name in self._inputs]
        self._output, self._length = _vector(config, tensors)
        self._check_required()

    def encode(self, request: EmbedRequest) -> dict[str, TensorInput]:
        """The prompt as the model takes it. Raises InvalidRequest where it is not known so."""
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

    def decode(self, outputs: Outputs) -> EmbeddingResult:
        """The vector in the response's own memory; its tokens are for the gateway to count."""
        tensor = outputs.tensor(self._output)
        if tensor is None:
            raise InferenceFailed("The model answered without an embedding.")
        view, shape = memoryview(tensor), tuple(tensor.shape) or (0,)
        if prod(shape) != (self._length or shape[-1]):
            told = " x ".join(map(str, shape))
            raise InferenceFailed(f"The model answered with {told} numbers, not with one vector.")
        return EmbeddingResult(memoryview(tensor) if view.ndim == 1 else _flat(view), 0)

    def _tensor(self, values: Sequence[Any]) -> TensorInput:
        return self._inputs.tensor(self._prompt_name, values)

    def _found(self, tensors: Mapping[str, str]) -> tuple[str, str]:
        """Which of the two the model takes, and its own name of it."""
        for ours, usual in _PROMPTS.items():
            for name in (tensors[ours],) if ours in tensors else usual:
                if name in self._inputs:
                    return ours, name
        raise ModelUnavailable("none of its inputs is a prompt: `tensors` can say which is meant")

    def _check_required(self) -> None:
        filled = {self._prompt_name, *(self._beside if self._prompt != "text_input" else ())}
        for name in sorted(self._inputs.required() - filled):
            raise ModelUnavailable(
                f"its input '{name}' is required, and nothing of a request fills it"
            )


def _flat(view: Any) -> memoryview:
    return view.cast("B").cast("f")  # type: ignore[no-any-return]


def is_embedding_model(config: Mapping[str, Any]) -> bool:
    """Whether a model's own names say that it is asked so."""
    inputs = {tensor["name"] for tensor in config.get("input", ())}
    outputs = {tensor["name"] for tensor in config.get("output", ())}
    prompts = {name for names in _PROMPTS.values() for name in names}
    return bool(inputs & prompts) and bool(outputs & set(_VECTORS)) and "text_output" not in outputs


def _vector(config: Mapping[str, Any], tensors: Mapping[str, str]) -> tuple[str, int | None]:
    """The model's name of its vector, and how long it is; None where each may differ."""
    numbers = [each for each in config.get("output", ()) if each["data_type"] == "TYPE_FP32"]
    wanted = (tensors["embedding"],) if "embedding" in tensors else _VECTORS
    named = [each for each in numbers if each["name"] in wanted]
    found = named or ([] if "embedding" in tensors else numbers)
    if len(found) != 1:
        raise ModelUnavailable(
            f"{len(found)} of its outputs may be a vector of the type TYPE_FP32: "
            f"`tensors` can say which is meant"
        )
    length = int(found[0].get("dims", [-1])[-1])
    return found[0]["name"], None if length < 0 else length


def _text(request: EmbedRequest) -> Sequence[str]:
    if request.prompt is None:
        raise InvalidRequest("This model takes inputs as text only.", param="input")
    return [request.prompt]


def _ids(request: EmbedRequest) -> Sequence[int]:
    if request.prompt_token_ids is None:
        raise InvalidRequest("This model takes inputs as token ids only.", param="input")
    return request.prompt_token_ids
