"""Reranking in the formats of Jina and vLLM (v1), Cohere (v2) and text-embeddings-inference, and
vLLM's scores of pairs of texts.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.embeddings import EmbeddingUsage
from schemas.sampling import INT32_MAX, ModelName, RequestFields

MAX_TEXTS = 2048

TextList = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
Texts = Annotated[str, Tag("<a string>")] | Annotated[TextList, Tag("<an array of strings>")]


class TextDocument(RequestFields):
    """A document as an object; other fields are ignored."""

    text: str


Document = Annotated[str, Tag("<a string>")] | Annotated[TextDocument, Tag("<an object>")]


class TruncatableRequest(RequestFields):
    """Treatment of pairs that are too long: vLLM's fields, then text-embeddings-inference's."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class RerankRequest(TruncatableRequest):
    """The body of POST /v1/rerank, /rerank and /v2/rerank."""

    model: ModelName = None
    query: Document
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None  # 0 is vLLM's "all"
    return_documents: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


class TextsRerankRequest(TruncatableRequest):
    """The body of POST /rerank in text-embeddings-inference's format: `texts`, and no model."""

    query: str
    texts: TextList
    model: ModelName = None
    return_text: bool | None = None


class RerankDocument(BaseModel):
    """A document of the request."""

    text: str


class RerankResult(BaseModel):
    """One document; `index` is its position in the request."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankResponse(BaseModel):
    """The response of v1: documents, the most relevant first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RerankResult]


class ApiVersion(BaseModel):
    """Cohere's API version."""

    version: Literal["2"] = "2"


class CohereTokens(BaseModel):
    """Token counts in Cohere's format."""

    input_tokens: int
    output_tokens: int = 0


class CohereMeta(BaseModel):
    """Cohere's fields other than the results."""

    api_version: ApiVersion = ApiVersion()
    tokens: CohereTokens


class CohereRerankResponse(BaseModel):
    """The response of v2: documents, the most relevant first."""

    id: str
    results: list[RerankResult]
    meta: CohereMeta


class TextRank(BaseModel):
    """One text in text-embeddings-inference's list, the most relevant first."""

    index: int
    score: float
    text: str | None = None


class ScoreRequest(TruncatableRequest):
    """The body of POST /v1/score: one of vLLM's four pairs of names."""

    model: ModelName = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None  # with `queries`
    items: Texts | None = None  # with `queries`
    data_1: Texts | None = None
    data_2: Texts | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


class Score(BaseModel):
    """One pair's score."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(BaseModel):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
