"""The tensors of models that embed or score, in NVIDIA's vLLM backend and in process."""

from array import array
from collections.abc import Container, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy
import orjson

from openai_frontend.contracts import DeclaredInputs, Outputs, TensorInput, media_tensors
from openai_frontend.errors import (
    InferenceFailed,
    InvalidRequest,
    MalformedOutput,
)
from openai_frontend.pooling import (
    MAX_BATCH_INPUTS,
    EmbeddingResult,
    EmbedRequest,
    ScorePairRequest,
    ScoreResult,
    SparseVector,
)


class EmbeddingContract:
    """A JSON document in, a vector out: as a tensor from our backend, as JSON from NVIDIA's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._inputs = DeclaredInputs(config)
        self._in_process = config.get("backend") == "inprocess"
        self._usual = self._document({}) if self._in_process else {}

    def batch_limit(self, *, tokenized: bool) -> int:
        """How many inputs one request may have: several only as token ids."""
        return MAX_BATCH_INPUTS if self._in_process and tokenized else 1

    def encode(self, requests: Sequence[EmbedRequest]) -> dict[str, TensorInput]:
        """Sends token ids if known, else the text; the ids as a tensor if the model takes one.

        Several requests need token ids, equal parameters, no images and a `batch_limit`.
        """
        first = requests[0]
        as_tensor = self._in_process and first.prompt_token_ids is not None
        params = _pooling_params(first)
        if as_tensor and not params:
            inputs = {**self._usual}
        else:
            document: dict[str, Any] = {} if as_tensor else {"input": _prompt(first)}
            if params:
                document["pooling_params"] = params
            inputs = self._document(document)
        if as_tensor:
            inputs |= _token_ids(self._inputs, [each.prompt_token_ids or () for each in requests])
        if first.images:
            inputs |= media_tensors(self._inputs, first.images, (), first.cache_salt)
        return inputs | _cache_salt(self._inputs, first.cache_salt)

    def _document(self, document: Mapping[str, Any]) -> dict[str, TensorInput]:
        return _inputs(self._inputs, "embedding_request", document)

    def decode(self, outputs: Outputs, count: int) -> list[EmbeddingResult]:
        """The vectors of `count` requests. A tensor stays in the response's own memory."""
        tensor = outputs.tensor("embedding")
        if tensor is None and (of_tokens := outputs.tensor("token_vectors")) is not None:
            return [_of_tokens(of_tokens, outputs)]
        vectors = _parsed(outputs) if tensor is None else memoryview(tensor)
        if count == 1:
            return [EmbeddingResult(vectors, outputs.item("num_input_tokens") or 0)]
        size, rest = divmod(len(vectors), count)
        if rest:
            raise InferenceFailed(f"The model returned {len(vectors)} numbers for {count} inputs.")
        return [
            EmbeddingResult(vectors[at * size : (at + 1) * size], tokens)
            for at, tokens in enumerate(_token_counts(outputs, count))
        ]


class ScoreContract:
    """Token ids in, a number out: as tensors of our backend, as JSON of a model in front of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._inputs = DeclaredInputs(config)
        self._in_process = config.get("backend") == "inprocess"

    def batch_limit(self, *, tokenized: bool) -> int:
        """How many pairs one request may have: several only as token ids."""
        return MAX_BATCH_INPUTS if self._in_process and tokenized else 1

    def encode(self, requests: Sequence[ScorePairRequest]) -> dict[str, TensorInput]:
        """The token ids, and which of them are the documents' if the requests say so: all of them,
        or none. Several requests need a `batch_limit`.
        """
        if not self._in_process:
            return _inputs(self._inputs, "score_request", _pair(requests[0]))
        inputs = _inputs(self._inputs, "score_request", {})
        inputs |= _token_ids(self._inputs, [each.prompt_token_ids for each in requests])
        if requests[0].token_type_ids is not None:
            types = list(chain.from_iterable(each.token_type_ids or () for each in requests))
            inputs["token_type_ids"] = self._inputs.tensor("token_type_ids", types)
        return inputs | _cache_salt(self._inputs, requests[0].cache_salt)

    def decode(self, outputs: Outputs, count: int) -> list[ScoreResult]:
        """The scores of `count` requests, with their numbers of input tokens."""
        scores = outputs.tolist("score") or []
        if len(scores) != count:
            raise InferenceFailed("The model returned no score.")
        return list(map(ScoreResult, scores, _token_counts(outputs, count)))


def _of_tokens(tensor: Any, outputs: Outputs) -> EmbeddingResult:
    """A vector for each token of one input, in the response's own memory."""
    tokens, width = tensor.shape
    if not tokens * width:
        raise InferenceFailed("The model returned no vectors of tokens.")
    vectors: Any = memoryview(tensor).cast("B").cast("f")
    return EmbeddingResult(vectors, outputs.item("num_input_tokens") or 0, width)


def _pair(request: ScorePairRequest) -> dict[str, Any]:
    document: dict[str, Any] = {"input": list(request.prompt_token_ids)}
    if request.token_type_ids is not None:
        document["token_type_ids"] = list(request.token_type_ids)
    return document


def _token_ids(
    declared: DeclaredInputs, prompts: Sequence[Sequence[int]]
) -> dict[str, TensorInput]:
    """One prompt after the other; with their lengths if there are several."""
    if len(prompts) == 1:
        return {"prompt_token_ids": declared.tensor("prompt_token_ids", prompts[0])}
    ids = list(chain.from_iterable(prompts))
    return {
        "prompt_token_ids": declared.tensor("prompt_token_ids", ids),
        "prompt_lengths": declared.tensor("prompt_lengths", list(map(len, prompts))),
    }


def _cache_salt(declared: DeclaredInputs, salt: str | None) -> dict[str, TensorInput]:
    """The salt of a caller, so that of all its inputs, for a model that takes one."""
    if salt is None or "cache_salt" not in declared:
        return {}
    return {"cache_salt": declared.tensor("cache_salt", [salt])}


def _token_counts(outputs: Outputs, count: int) -> Sequence[int]:
    """Zeros if the model does not count."""
    counts: Sequence[int] = outputs.tolist("num_input_tokens") or ()
    return counts if len(counts) == count else (0,) * count


def _pooling_params(request: EmbedRequest) -> dict[str, Any]:
    """In the format of NVIDIA's backend, with our engines' parameters of classification."""
    params: dict[str, Any] = {}
    if request.dimensions is not None:
        params["dimensions"] = [request.dimensions]
    if request.task != "embed":  # our engines make sparse vectors of the weights of tokens
        sparse = request.task == "sparse_embed"
        params["task"] = "token_classify" if sparse else request.task
    if request.use_activation is not None:
        params["use_activation"] = request.use_activation
    return params


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


def weights_of_tokens(
    token_ids: Sequence[int], weights: memoryview, special: Container[int]
) -> SparseVector:
    """The largest weight of each token, as BGE-M3 makes sparse vectors of its second head.

    The model may leave out the special token at each end. Raises MalformedOutput.
    """
    numbers = numpy.frombuffer(weights, "<f4")
    left_out = len(token_ids) - len(numbers)
    first = 1 if left_out == 2 or (left_out == 1 and token_ids[0] in special) else 0
    ids = list(token_ids)[first : first + len(numbers)]
    if not 0 <= left_out <= 2:
        raise MalformedOutput(
            f"The model returned {len(numbers)} weights for {len(token_ids)} tokens."
        )
    largest: dict[int, float] = {}
    for token_id, weight in zip(ids, numbers.tolist(), strict=True):
        if token_id not in special and not weight <= largest.get(token_id, 0.0):
            largest[token_id] = weight
    return SparseVector(
        numpy.array([*largest], dtype="<i8"), numpy.array([*largest.values()], dtype="<f4")
    )
