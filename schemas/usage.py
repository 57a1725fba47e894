"""Token counts, the same in chat completions and completions."""

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int = 0


class CompletionUsage(BaseModel):
    """Tokens read and written for one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
