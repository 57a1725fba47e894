"""How much one request may ask for. Values only; `app.py` takes them from the settings."""

from dataclasses import dataclass

from openai_frontend.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceLimits:
    """The server's own limits, beside those that the schemas hold for every server."""

    max_n: int = 128  # choices for each prompt
    max_messages: int = 2048
    max_prompts: int = 2048  # answers of one completions request: prompts times n
    max_output_tokens: int = 2**24  # that one request may have generated, all choices together
    max_prompt_tokens: int = 2**20  # of one request, all prompts together
    max_prompt_logprobs: int = 262_144  # 2 us of the event loop and 0.3 KB each
    max_inputs: int = 2048  # of one embeddings request
    max_input_tokens: int = 300_000  # of one embeddings request, all inputs together

    def check_n(self, n: int, param: str = "n") -> None:
        """Refuses more choices than the server allows."""
        if n > self.max_n:
            raise _above_maximum(param, self.max_n, n)

    def check_answer_tokens(self, n: int, max_tokens: int | None) -> None:
        """Refuses choices that may be too long together; of unknown length, the model bounds it."""
        if max_tokens is not None and n * max_tokens > self.max_output_tokens:
            message = (
                f"Invalid 'n': {n} choices of up to {max_tokens} tokens each are {n * max_tokens} "
                f"tokens. At most {self.max_output_tokens} are generated for one request; ask for "
                "fewer choices or shorter ones."
            )
            raise InvalidRequest(message, param="n", code="integer_above_max_value")

    def check_messages(self, messages: int) -> None:
        """Refuses longer conversations than the server allows."""
        if messages > self.max_messages:
            raise _too_long("messages", self.max_messages, messages)

    def check_prompts(self, prompts: int, n: int) -> None:
        """Refuses more answers than the server gives to one request."""
        if n > self.max_prompts:
            raise _above_maximum("n", self.max_prompts, n)
        if prompts * n > self.max_prompts:
            raise _too_long("prompt", self.max_prompts // n, prompts)

    def check_prompt_tokens(self, tokens: int, param: str) -> None:
        """Refuses prompts that are longer together than the server reads for one request."""
        if tokens > self.max_prompt_tokens:
            raise _too_many_tokens(tokens, self.max_prompt_tokens, param)

    def check_prompt_logprobs(self, entries: int, param: str) -> None:
        """Refuses more log probabilities of prompts than one answer may hold."""
        if entries > self.max_prompt_logprobs:
            message = (
                f"Invalid '{param}': the prompts' log probabilities, with those of the likeliest "
                f"tokens, would be {entries} for all answers. At most {self.max_prompt_logprobs} "
                "are told in one request."
            )
            raise InvalidRequest(message, param=param)

    def check_inputs(self, inputs: int) -> None:
        """Refuses more inputs than OpenAI takes."""
        if inputs > self.max_inputs:
            raise _too_long("input", self.max_inputs, inputs)

    def check_input_tokens(self, tokens: int) -> None:
        """Refuses inputs that are too long together."""
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
