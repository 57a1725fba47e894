"""The option `moderation` of a classifier: its labels as categories of OpenAI's moderations."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from openai_frontend.errors import did_you_mean
from schemas.moderations import CATEGORIES


def _checked_category(name: str) -> str:
    if name not in CATEGORIES:
        raise ValueError(f"unknown category '{name}'{did_you_mean(name, CATEGORIES)}")
    return name


Category = Annotated[str, AfterValidator(_checked_category)]
Threshold = Annotated[float, Field(ge=0, le=1)]


class ModerationOptions(BaseModel):
    """A category without a label never flags anything. One with several has the highest score."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: Annotated[dict[str, Category], Field(min_length=1)]
    threshold: Threshold = 0.5  # the score from which a category is flagged
    thresholds: dict[Category, Threshold] = {}  # for some categories

    fail_open: bool = False  # chats whose guard fails continue without it, in mode `block`

    @model_validator(mode="after")
    def _check_thresholds(self) -> "ModerationOptions":
        for category in self.thresholds:
            if category not in self.labels.values():
                raise ValueError(f"`thresholds` has '{category}', but no label has that category")
        return self
