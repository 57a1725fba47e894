"""The completions resource (OpenAI's legacy one, which editors and evaluation harnesses use)."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.sampling import SamplingFields, TokenId
from schemas.usage import CompletionUsage

FinishReason = Literal["stop", "length"]

PromptTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
PromptTokenLists = Annotated[list[PromptTokens], Field(min_length=1, fail_fast=True)]
Prompt = (
    Annotated[str, Tag("<a string>")]
    | Annotated[PromptTexts, Tag("<an array of strings>")]
    | Annotated[PromptTokens, Tag("<an array of integers>")]
    | Annotated[PromptTokenLists, Tag("<an array of arrays of integers>")]
)


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None


class CompletionChoice(BaseModel):
    """One answer, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None


class Completion(BaseModel):
    """A whole answer, or one event of a streamed one; then `usage` is absent unless asked for."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None
