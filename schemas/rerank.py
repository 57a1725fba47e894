"""Reranking as Jina and vLLM (v1), Cohere (v2) and text-embeddings-inference speak it."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.embeddings import EmbeddingUsage
from schemas.sampling import INT32_MAX, ModelName, RequestFields
from schemas.score import MAX_TEXTS, TextList


class TextDocument(RequestFields):
    """A document as an object; other fields of it are the caller's own."""

    text: str


Document = Annotated[str, Tag("<a string>")] | Annotated[TextDocument, Tag("<an object>")]


class RerankRequest(RequestFields):
    """The body of POST /v1/rerank, /rerank and /v2/rerank."""

    model: ModelName = None
    query: Document
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None  # 0 is vLLM's "all"
    return_documents: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


class TextsRerankRequest(RequestFields):
    """The body of POST /rerank as text-embeddings-inference takes it: `texts`, and no model."""

    query: str
    texts: TextList
    model: ModelName = None
    return_text: bool | None = None


class RerankDocument(BaseModel):
    """A document as it was sent."""

    text: str


class RerankResult(BaseModel):
    """One document; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankResponse(BaseModel):
    """The documents of v1, the most relevant first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


class ApiVersion(BaseModel):
    """Cohere's."""

    version: Literal["2"] = "2"


class CohereTokens(BaseModel):
    """Tokens in Cohere's words."""

    input_tokens: int
    output_tokens: int = 0


class CohereMeta(BaseModel):
    """What Cohere says beside the results."""

    api_version: ApiVersion = ApiVersion()
    tokens: CohereTokens


class CohereRerankResponse(BaseModel):
    """The documents of v2, the most relevant first."""

    id: str
    results: list[RerankResult]
    meta: CohereMeta


class TextRank(BaseModel):
    """One text of text-embeddings-inference's bare list, the most relevant first."""

    index: int
    score: float
    text: str | None = None
