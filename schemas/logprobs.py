"""Log probabilities of tokens: OpenAI's two forms, and vLLM's for prompts."""

from pydantic import BaseModel
from typing_extensions import TypedDict


class TopLogprob(TypedDict):
    """One of the likeliest tokens at a place. A logprob of -9999 stands for one without end."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionTokenLogprob(TypedDict):
    """A sampled token: its text, and its bytes, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(TypedDict):
    """Chat completions': one entry for each token of the choice, or of the chunk."""

    content: list[ChatCompletionTokenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Completions': parallel lists. `text_offset` counts characters from the text's start; a
    prompt's first token, echoed, has no logprob.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    """vLLM's: what the model thought of one token at one place of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# for each token of the prompt: token id as text -> its logprob; null for the first
PromptLogprobs = list[dict[str, PromptLogprob] | None]
