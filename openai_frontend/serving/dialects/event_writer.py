"""The part of a writer that most dialects share: nothing beside the events of the output."""

from collections.abc import Sequence

from openai_frontend.generation import TokenLogprobs
from openai_frontend.parsing.events import Event
from openai_frontend.serving.output.completion_job import Usage
from openai_frontend.text_relay import AddToken, EventNumbers


class EventWriter:
    """Defaults of `output.stream.Writer`."""

    numbers: EventNumbers | None = None  # events have none

    def relayed(self, choice: int, events: Sequence[Event]) -> None:
        """Nothing repeats the output."""

    def count(self, usage: Usage) -> None:
        """The usage comes at the end."""

    def prompt_logprobs(self, choice: int, positions: Sequence[TokenLogprobs | None]) -> bytes:
        """No event has them."""
        return b""

    def around_logprobs(self, choice: int) -> tuple[bytes, bytes, bytes] | None:
        """Nothing is relayed with log probabilities."""
        return None

    def on_token(self, choice: int, known: AddToken) -> None:
        """Nothing is relayed with log probabilities."""

    def keep_alive(self) -> bytes | None:
        """A comment is enough."""
        return None
