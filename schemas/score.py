"""vLLM's score resource: how well texts go with texts."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.embeddings import EmbeddingUsage
from schemas.sampling import ModelName, RequestFields

MAX_TEXTS = 2048

TextList = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
Texts = Annotated[str, Tag("<a string>")] | Annotated[TextList, Tag("<an array of strings>")]


class ScoreRequest(RequestFields):
    """The body of POST /v1/score: one of the four pairs of names that vLLM knows."""

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
