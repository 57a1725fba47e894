"""The server's limits on one request. `app.py` sets them from the settings."""

from dataclasses import dataclass

from openai_frontend.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceLimits:
    """Limits of this server. Those of the API are in the schemas."""

    max_n: int = 128  # choices for each prompt
    max_messages: int = 2048
    max_prompts: int = 2048  # completions of one request: prompts times n
    max_output_tokens: int = 2**24  # of one request, all choices together
    max_prompt_tokens: int = 2**20  # of one request, all prompts together
    max_prompt_logprobs: int = 262_144  # 2 us of the event loop and 0.3 KB each
    max_inputs: int = 2048  # of one embeddings request
    max_input_tokens: int = 300_000  # of one embeddings request, all inputs together

    def check_n(self, n: int, param: str = "n") -> None:
        if n > self.max_n:
            raise _above_maximum(param, self.max_n, n)

    def check_output_tokens(self, n: int, max_tokens: int | None) -> None:
        """Limit the total output length. Without `max_tokens`, only the model limits it."""
        if max_tokens is not None and n * max_tokens > self.max_output_tokens:
            message = (
                f"Invalid 'n': {n} choices of up to {max_tokens} tokens are {n * max_tokens} "
                f"tokens; the limit is {self.max_output_tokens} per request. Request fewer or "
                "shorter choices."
            )
            raise InvalidRequest(message, param="n", code="integer_above_max_value")

    def check_messages(self, messages: int) -> None:
        if messages > self.max_messages:
            raise _too_long("messages", self.max_messages, messages)

    def check_prompts(self, prompts: int, n: int) -> None:
        if n > self.max_prompts:
            raise _above_maximum("n", self.max_prompts, n)
        if prompts * n > self.max_prompts:
            raise _too_long("prompt", self.max_prompts // n, prompts)

    def check_prompt_tokens(self, tokens: int, param: str) -> None:
        if tokens > self.max_prompt_tokens:
            raise _too_many_tokens(tokens, self.max_prompt_tokens, param)

    def check_prompt_logprobs(self, entries: int, param: str) -> None:
        if entries > self.max_prompt_logprobs:
            message = (
                f"Invalid '{param}': this request would return {entries} prompt log probabilities, "
                f"more than the limit of {self.max_prompt_logprobs}."
            )
            raise InvalidRequest(message, param=param)

    def check_inputs(self, inputs: int) -> None:
        if inputs > self.max_inputs:
            raise _too_long("input", self.max_inputs, inputs)

    def check_input_tokens(self, tokens: int) -> None:
        if tokens > self.max_input_tokens:
            raise _too_many_tokens(tokens, self.max_input_tokens, "input")


def _too_many_tokens(tokens: int, most: int, param: str) -> InvalidRequest:
    message = f"Requested {tokens} tokens, max {most} tokens per request."
    return InvalidRequest(message, param=param, code="max_tokens_per_request")


def _above_maximum(param: str, maximum: int, value: int) -> InvalidRequest:
    message = (
        f"Invalid '{param}': integer above maximum value. "
        f"Expected a value <= {maximum}, but got {value} instead."
    )
    return InvalidRequest(message, param=param, code="integer_above_max_value")


def _too_long(param: str, maximum: int, length: int) -> InvalidRequest:
    message = (
        f"Invalid '{param}': array too long. Expected an array with maximum length {maximum}, "
        f"but got an array with length {length} instead."
    )
    return InvalidRequest(message, param=param, code="array_above_max_length")
