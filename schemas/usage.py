"""Token counts, the same in chat completions and completions."""

from pydantic import BaseModel, ConfigDict


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """What the answer's tokens were. Predicted ones are none: a prediction goes unused."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(BaseModel):
    """Tokens read and written for one request, over all its choices.

    Where the request asked for them, also `performance_metrics`: a mapping for each choice.
    """

    model_config = ConfigDict(extra="allow")

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
