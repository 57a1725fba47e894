"""The moderations resource."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.sampling import ModelName, RequestFields

# OpenAI's, in the order of its responses
CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit",
    "illicit/violent", "self-harm", "self-harm/instructions", "self-harm/intent", "sexual",
    "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip


class ModerationImageURL(RequestFields):
    """The address of an image."""

    url: str


class ModerationPart(RequestFields):
    """A text, or an image, which no model here moderates."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ModerationImageURL | None = None


# The number of inputs is limited elsewhere: a union would lose the message of a limit here.
ModerationTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
ModerationParts = Annotated[list[ModerationPart], Field(min_length=1, fail_fast=True)]


class ModerationRequest(RequestFields):
    """The body of POST /v1/moderations. A list of parts is one input."""

    input: (
        Annotated[str, Tag("<a string>")]
        | Annotated[ModerationTexts, Tag("<an array of strings>")]
        | Annotated[ModerationParts, Tag("<an array of parts>")]
    )
    model: ModelName = None


class ModerationResult(BaseModel):
    """The scores of one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]  # 0 for a category that the model does not know
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationCreateResponse(BaseModel):
    """The results, in the order of the inputs."""

    id: str
    model: str
    results: list[ModerationResult]
