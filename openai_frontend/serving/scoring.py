"""Scores how well texts match, by a cross-encoder or by the cosine of embeddings.

Reranking sorts documents by their scores, in the formats of four APIs.
"""

import asyncio
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.pooling import EmbeddingResult, ScorePairRequest, ScoreResult
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.prompting.tokenizer import Truncation
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.model import Renders, ServingModel
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.pooling import (
    Text,
    TimeSlicer,
    cosine_similarity,
    embedding_cost_us,
    embedding_request,
    gather_batches,
    input_costs_us,
    input_truncation,
    pooling_cost_us,
    similarity_cost_us,
    tokenize_inputs,
)
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_SCORING, FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.embeddings import EmbeddingUsage
from schemas.rerank import (
    CohereMeta,
    CohereRerankResponse,
    CohereTokens,
    Document,
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    Score,
    ScoreRequest,
    ScoreResponse,
    TextRank,
    Texts,
    TextsRerankRequest,
    TruncatableRequest,
)

Pair = tuple[Text, Text]  # query, document

# vLLM's field names for the two sides.
_SIDES = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores in the order of the pairs."""

    id: str
    scores: list[float]
    usage: EmbeddingUsage


class Scoring:
    """POST /v1/score, and the scores by which reranking sorts."""

    def __init__(self, limits: InferenceLimits, policy: FieldPolicy, admission: Admission) -> None:
        self._limits = limits
        self._policy = policy
        self._admission = admission
        self._slicer = TimeSlicer()

    async def create(self, request: ScoreRequest, model: ServingModel) -> ScoreResponse:
        """The scores of all pairs. Raises for what this model or server does not support."""
        self._policy.check_extra(request, NEUTRAL_IN_SCORING)
        cut = _truncation(request, model)
        scored = await self.score(_pairs(request), model, id=new_id("score"), truncation=cut)
        return ScoreResponse(
            id=scored.id,
            created=int(time.time()),
            model=model.name,
            data=[Score(index=index, score=score) for index, score in enumerate(scored.scores)],
            usage=scored.usage,
        )

    async def score(
        self,
        pairs: Sequence[Pair],
        model: ServingModel,
        *,
        id: str,
        truncation: Truncation | None = None,
    ) -> Scored:
        """Scores by the cross-encoder, or else by similarity of embeddings."""
        self._admission.check(current_request(), model)
        if "score" in model.tasks:
            scores, tokens = await self._cross_encode(pairs, model, id, truncation)
        elif "embed" in model.tasks:
            scores, tokens = await self._compare(pairs, model, id, truncation)
        else:
            message = f"The model '{model.name}' does not score texts."
            raise InvalidRequest(message, param="model", code="unsupported_model")
        return Scored(id, scores, EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens))

    async def _cross_encode(
        self, pairs: Sequence[Pair], model: ServingModel, id: str, truncation: Truncation | None
    ) -> tuple[list[float], int]:
        """Scores of a cross-encoder, which reads each pair as one sequence."""
        requests, tokens = [], 0
        for at, pair in enumerate(pairs):
            requests.append(await _score_request(f"{id}-{at}", pair, model, truncation))
            tokens += len(requests[-1].prompt_token_ids)
            self._limits.check_prompt_tokens(tokens, pair[1].param)
            await asyncio.sleep(0)  # a short pair is tokenized on the event loop

        async def score(batch: range) -> list[ScoreResult]:
            await self._slicer.take(pooling_cost_us(ids[batch.start : batch.stop]))
            return await permit.score(requests[batch.start : batch.stop])

        ids = [request.prompt_token_ids for request in requests]
        costs_us = input_costs_us([Prompt(None, each) for each in ids])
        limit = model.batch_limit("score", tokenized=True)
        context, wanted = current_request(), len(requests)
        async with self._admission.enter(context, model, requests[0], wanted=wanted) as permit:
            results = await gather_batches(score, costs_us, permit.granted, limit)
        scores = [result.score for result in results]
        if not all(map(math.isfinite, scores)):
            raise InferenceFailed("The model returned a score that is not finite.")
        return scores, _prompt_tokens(results, ids)

    async def _compare(
        self, pairs: Sequence[Pair], model: ServingModel, id: str, truncation: Truncation | None
    ) -> tuple[list[float], int]:
        """Cosine similarities. Each text is embedded once, however many pairs have it."""
        inputs = list({each.text: each for pair in pairs for each in pair}.values())
        prompts = await tokenize_inputs(inputs, model, truncation=truncation)
        tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._limits.check_prompt_tokens(tokens, inputs[-1].param)

        async def embed(batch: range) -> list[EmbeddingResult]:
            await self._slicer.take(embedding_cost_us(prompts[batch.start : batch.stop]))
            return await permit.embed(requests[batch.start : batch.stop])

        ids = [prompt.token_ids for prompt in prompts]
        costs_us, limit = input_costs_us(prompts), model.batch_limit("embed", tokenized=all(ids))
        requests = [
            embedding_request(f"{id}-{at}", prompt, param=inputs[at].param)
            for at, prompt in enumerate(prompts)
        ]
        context, wanted = current_request(), len(requests)
        async with self._admission.enter(context, model, requests[0], wanted=wanted) as permit:
            results = await gather_batches(embed, costs_us, permit.granted, limit)
        vectors = {
            each.text: result.embedding for each, result in zip(inputs, results, strict=True)
        }
        scores = []
        for one, other in pairs:
            first, second = vectors[one.text], vectors[other.text]
            await self._slicer.take(similarity_cost_us(first))
            scores.append(cosine_similarity(first, second))
        return scores, _prompt_tokens(results, ids)


def _prompt_tokens(
    results: Sequence[EmbeddingResult | ScoreResult], prompts: Sequence[Sequence[int]]
) -> int:
    """The tokens that the model reports, or else the prompts' lengths."""
    counted = zip(results, prompts, strict=True)  # not every backend counts
    return sum(result.prompt_tokens or len(prompt) for result, prompt in counted)


def _truncation(request: TruncatableRequest, model: Renders) -> Truncation | None:
    """How to cut documents, and texts that are embedded alone; None if nothing can be cut here."""
    tokens = request.truncate_prompt_tokens
    if tokens is None and request.truncate:
        tokens = -1
    if tokens == -1 and (model.prompts is None or model.facts.max_model_len is None):
        return None
    direction = (request.truncation_direction or "").lower()
    side = request.truncation_side or ("left" if direction == "left" else "right")
    return input_truncation(tokens, side, model)


async def _score_request(
    id: str, pair: Pair, model: Renders, truncation: Truncation | None
) -> ScorePairRequest:
    first, second = pair
    token_ids, token_type_ids = await model.tokenize_pair(
        first.text, second.text, params=(first.param, second.param), truncation=truncation
    )
    return ScorePairRequest(
        request_id=id,
        prompt_token_ids=token_ids,
        token_type_ids=token_type_ids,
        param=second.param,
    )


def _pairs(request: ScoreRequest) -> list[Pair]:
    """One text with each of many, or texts with the same index."""
    (first, second), (ones, others) = _sides(request)
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        message = (
            f"Invalid '{first}': {len(ones)} texts cannot be paired with {len(others)} in "
            f"'{second}'. Send one text, or the same number."
        )
        raise InvalidRequest(message, param=first)
    return list(zip(ones, others, strict=True))


def _sides(request: ScoreRequest) -> tuple[tuple[str, str], tuple[list[Text], list[Text]]]:
    """The field names of the two sides, and their texts."""
    named = {name: getattr(request, name) for pair in _SIDES for name in pair}
    present = {name for name, texts in named.items() if texts is not None}
    names = max(_SIDES, key=lambda pair: len(present & set(pair)))  # the first of equals
    for name in names:
        if name not in present:
            message = f"Missing required parameter: '{name}'."
            raise InvalidRequest(message, param=name, code="missing_required_parameter")
    for name in sorted(present - set(names)):
        message = f"Invalid '{name}': the texts are already in '{names[0]}' and '{names[1]}'."
        raise InvalidRequest(message, param=name)
    return names, (_texts(named[names[0]], names[0]), _texts(named[names[1]], names[1]))


def _texts(texts: Texts, param: str) -> list[Text]:
    if isinstance(texts, str):
        return [Text(texts, param)]
    return [Text(each, f"{param}[{index}]") for index, each in enumerate(texts)]


# These match keys only: within a JSON string, quotes are escaped.
_TEXTS = re.compile(rb'"texts"\s*:')
_DOCUMENTS = re.compile(rb'"documents"\s*:')


@dataclass(frozen=True, slots=True)
class Ranked:
    """Indexes of the documents, the most relevant first, and their scores."""

    order: list[int]
    scored: Scored


class Reranking:
    """The rerank endpoints, independent of HTTP: documents sorted by relevance to a query."""

    def __init__(self, policy: FieldPolicy, scoring: Scoring) -> None:
        self._policy = policy
        self._scoring = scoring

    async def create(self, request: RerankRequest, model: ServingModel) -> RerankResponse:
        """Jina's and vLLM's response: with documents unless the request excludes them."""
        ranked = await self._rank(request, model)
        return RerankResponse(
            id=ranked.scored.id,
            model=model.name,
            usage=ranked.scored.usage,
            results=_results(request, ranked, with_documents=request.return_documents is not False),
        )

    async def create_for_cohere(
        self, request: RerankRequest, model: ServingModel
    ) -> CohereRerankResponse:
        """Cohere v2's response: without documents unless the request includes them."""
        ranked = await self._rank(request, model)
        tokens = CohereTokens(input_tokens=ranked.scored.usage.prompt_tokens)
        return CohereRerankResponse(
            id=ranked.scored.id,
            results=_results(request, ranked, with_documents=bool(request.return_documents)),
            meta=CohereMeta(tokens=tokens),
        )

    async def create_for_texts(
        self, request: TextsRerankRequest, model: ServingModel
    ) -> list[TextRank]:
        """The response of text-embeddings-inference: a bare list."""
        self._policy.check_extra(request, NEUTRAL_IN_SCORING)
        ranked = await self._sort(request.query, request.texts, "texts", model, request)
        return [
            TextRank(
                index=index,
                score=ranked.scored.scores[index],
                text=request.texts[index] if request.return_text else None,
            )
            for index in ranked.order
        ]

    async def _rank(self, request: RerankRequest, model: ServingModel) -> Ranked:
        self._policy.check_extra(request, NEUTRAL_IN_SCORING)
        documents = [_text(document) for document in request.documents]
        return await self._sort(_text(request.query), documents, "documents", model, request)

    async def _sort(
        self,
        query: str,
        documents: Sequence[str],
        param: str,
        model: ServingModel,
        request: TruncatableRequest,
    ) -> Ranked:
        query_text = Text(query, "query")
        pairs = [(query_text, Text(each, f"{param}[{at}]")) for at, each in enumerate(documents)]
        cut = _truncation(request, model)
        scored = await self._scoring.score(pairs, model, id=new_id("rerank"), truncation=cut)
        # `sorted` is stable: documents with equal scores keep their order
        order = sorted(range(len(pairs)), key=lambda at: -scored.scores[at])
        return Ranked(order, scored)


def has_texts(body: bytes) -> bool:
    """Whether a body is text-embeddings-inference's, which has `texts` instead of `documents`."""
    return bool(_TEXTS.search(body)) and not _DOCUMENTS.search(body)


def _results(request: RerankRequest, ranked: Ranked, *, with_documents: bool) -> list[RerankResult]:
    return [
        RerankResult(
            index=index,
            relevance_score=ranked.scored.scores[index],
            document=_returned(request.documents[index]) if with_documents else None,
        )
        for index in ranked.order[: request.top_n or None]
    ]


def _text(document: Document) -> str:
    return document if isinstance(document, str) else document.text


def _returned(document: Document) -> RerankDocument:
    return RerankDocument(text=_text(document))
