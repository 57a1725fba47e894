"""Token counts, the same in chat completions and completions."""

from pydantic import BaseModel, ConfigDict


class PromptTokensDetails(BaseModel):
    """How many of the prompt's tokens were in the prefix cache, and how many stand for media."""

    cached_tokens: int
    image_tokens: int | None = None  # absent without images
    audio_tokens: int | None = None  # absent without audio


class CompletionTokensDetails(BaseModel):
    """The kinds of output tokens. Predicted tokens are always 0: predictions are not used."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(BaseModel):
    """Input and output tokens of one request, for all its choices.

    With `performance_metrics`, a mapping for each choice, if the request asks for them.
    """

    model_config = ConfigDict(extra="allow")

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
