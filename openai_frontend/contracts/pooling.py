"""The tensors of embeddings and scores in NVIDIA's vLLM backend and our in-process backend."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from openai_frontend.contracts.contract import DeclaredInputs, Outputs, TensorInput
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import (
    EmbeddingResult,
    EmbedRequest,
    ScorePairRequest,
    ScoreResult,
)


class EmbeddingContract:
    """A JSON document in, a vector out: as a tensor from our backend, as JSON from NVIDIA's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._inputs = DeclaredInputs(config)
        self._takes_token_ids = config.get("backend") == "inprocess"

    def encode(self, request: EmbedRequest) -> dict[str, TensorInput]:
        """Sends token ids if known, else the text; the ids as a tensor if the model takes one."""
        token_ids = request.prompt_token_ids if self._takes_token_ids else None
        document: dict[str, Any] = {"input": _prompt(request)} if token_ids is None else {}
        if request.dimensions is not None:
            document["pooling_params"] = {"dimensions": [request.dimensions]}  # NVIDIA's format
        inputs = _inputs(self._inputs, "embedding_request", document)
        if token_ids is not None:
            inputs["prompt_token_ids"] = self._inputs.tensor("prompt_token_ids", token_ids)
        return inputs

    def decode(self, outputs: Outputs) -> EmbeddingResult:
        """The vector. If it comes as a tensor, it stays in the response's own memory."""
        tensor = outputs.tensor("embedding")
        vector = _parsed(outputs) if tensor is None else memoryview(tensor)
        return EmbeddingResult(vector, outputs.item("num_input_tokens") or 0)


class ScoreContract:
    """A JSON document in, a number out. Only our in-process backend has it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._inputs = DeclaredInputs(config)

    def encode(self, request: ScorePairRequest) -> dict[str, TensorInput]:
        """The token ids, and which of them are the document's if the model takes that."""
        document: dict[str, Any] = {"input": list(request.prompt_token_ids)}
        if request.token_type_ids is not None:
            document["token_type_ids"] = list(request.token_type_ids)
        return _inputs(self._inputs, "score_request", document)

    def decode(self, outputs: Outputs) -> ScoreResult:
        """The score and the number of input tokens."""
        score = outputs.item("score")
        if score is None:
            raise InferenceFailed("The model returned no score.")
        return ScoreResult(score, outputs.item("num_input_tokens") or 0)


def _prompt(request: EmbedRequest) -> str | Sequence[int]:
    if request.prompt_token_ids is not None:
        return list(request.prompt_token_ids)
    if request.prompt is not None:
        return request.prompt
    raise InvalidRequest("The input is empty.", param="input")


def _inputs(
    declared: DeclaredInputs, name: str, document: Mapping[str, Any]
) -> dict[str, TensorInput]:
    inputs = {name: declared.tensor(name, [orjson.dumps(document).decode()])}
    if "return_num_input_tokens" in declared:
        inputs["return_num_input_tokens"] = declared.tensor("return_num_input_tokens", [True])
    return inputs


def _parsed(outputs: Outputs) -> memoryview:
    text = outputs.item("text_output")
    try:
        return memoryview(array("f", orjson.loads(text or b"")))
    except (orjson.JSONDecodeError, TypeError):
        raise InferenceFailed("The model returned no embedding.") from None
