"""How much one request may ask for. Values only; `app.py` takes them from the settings."""

from dataclasses import dataclass

from openai_frontend.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The server's own limits, beside those that the schemas hold for every server."""

    max_n: int = 128  # choices for each prompt
    max_messages: int = 2048
    max_prompts: int = 2048  # answers of one completions request: prompts times n

    def check_n(self, n: int) -> None:
        """Refuses more choices than the server allows."""
        if n > self.max_n:
            message = (
                "Invalid 'n': integer above maximum value. "
                f"Expected a value <= {self.max_n}, but got {n} instead."
            )
            raise InvalidRequest(message, param="n", code="integer_above_max_value")

    def check_messages(self, messages: int) -> None:
        """Refuses longer conversations than the server allows."""
        if messages > self.max_messages:
            raise _too_long("messages", self.max_messages, messages)

    def check_prompts(self, prompts: int, n: int) -> None:
        """Refuses more answers than the server gives to one request."""
        if prompts * n > self.max_prompts:
            raise _too_long("prompt", self.max_prompts // n, prompts)


def _too_long(param: str, maximum: int, length: int) -> InvalidRequest:
    message = (
        f"Invalid '{param}': array too long. Expected an array with maximum length {maximum}, "
        f"but got an array with length {length} instead."
    )
    return InvalidRequest(message, param=param, code="array_above_max_length")
