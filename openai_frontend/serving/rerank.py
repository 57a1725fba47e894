"""Documents sorted by relevance to a query, in the formats of four APIs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.request.embedding_inputs import Text
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_SCORING, FieldPolicy
from openai_frontend.serving.scoring import Scored, Scoring
from schemas.rerank import (
    CohereMeta,
    CohereRerankResponse,
    CohereTokens,
    Document,
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    TextRank,
    TextsRerankRequest,
)

# As keys: within a JSON string, quotes are escaped.
_TEXTS = re.compile(rb'"texts"\s*:')
_DOCUMENTS = re.compile(rb'"documents"\s*:')


@dataclass(frozen=True, slots=True)
class Ranked:
    """Indexes of the documents, the most relevant first, and their scores."""

    order: list[int]
    scored: Scored


class Reranking:
    """The rerank endpoints, independent of HTTP."""

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
        ranked = await self._sort(request.query, request.texts, "texts", model)
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
        return await self._sort(_text(request.query), documents, "documents", model)

    async def _sort(
        self, query: str, documents: Sequence[str], param: str, model: ServingModel
    ) -> Ranked:
        query_text = Text(query, "query")
        pairs = [(query_text, Text(each, f"{param}[{at}]")) for at, each in enumerate(documents)]
        scored = await self._scoring.score(pairs, model, id=new_id("rerank"))
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
