"""The completions resource (OpenAI's legacy one, which editors and evaluation harnesses use)."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, Tag

from schemas.logprobs import CompletionLogprobs, PromptLogprobs
from schemas.sampling import INT32_MAX, SamplingFields, TokenId
from schemas.token_ids import MAY_BE_LONG
from schemas.usage import CompletionUsage

FinishReason = Literal["stop", "length"]

PromptTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True), MAY_BE_LONG]
PromptTokenLists = Annotated[list[PromptTokens], Field(min_length=1, fail_fast=True)]
Prompt = (
    Annotated[str, Tag("<a string>")]
    | Annotated[PromptTexts, Tag("<an array of strings>")]
    | Annotated[PromptTokens, Tag("<an array of integers>")]
    | Annotated[PromptTokenLists, Tag("<an array of arrays of integers>")]
)


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Prompt | None  # null: the start of a document
    max_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None  # OpenAI allows 5, vLLM more


class CompletionChoice(BaseModel):
    """One choice, or its part in a chunk. The last three fields are vLLM's, if requested."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(BaseModel):
    """A complete response, or one event of a stream; there, `usage` is absent unless requested."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[CompletionChoice]
    obfuscation: str | None = None
    usage: CompletionUsage | None = None
