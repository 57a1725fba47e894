"""Log probabilities of tokens: OpenAI's two forms, and vLLM's for prompts."""

from pydantic import BaseModel
from typing_extensions import TypedDict


class TopLogprob(TypedDict):
    """One of the most likely tokens at a position. -9999 means minus infinity."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionTokenLogprob(TypedDict):
    """A sampled token: its text, and its bytes, which may be part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(TypedDict):
    """Log probabilities of a chat: one entry for each token of the choice or the chunk."""

    content: list[ChatCompletionTokenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Log probabilities of a completion: parallel lists. `text_offset` counts characters from the
    start of the text; the first token of an echoed prompt has no logprob.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    """vLLM's: the log probability of one token at one position of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# for each token of the prompt: token id as text -> its logprob; null for the first
PromptLogprobs = list[dict[str, PromptLogprob] | None]
