"""Events as OpenAI's completions: a stream of them, and the text of a choice."""

from collections.abc import Iterable, Sequence

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import TokenLogprobs
from openai_frontend.parsing.events import ContentText, Event
from openai_frontend.serving.dialects.chunks import ChunkWriter
from openai_frontend.serving.output.completion_job import CompletionJob, Usage
from openai_frontend.serving.output.logprobs import NO_PROMPT_LOGPROBS, TextLogprobs
from openai_frontend.serving.output.stream import UnreportedTokens
from openai_frontend.sse import COMPLETION_CHUNK


class CompletionWriter(ChunkWriter[TextLogprobs]):
    """Writes a stream of Completion chunks, whose only events are texts."""

    def __init__(self, job: CompletionJob) -> None:
        super().__init__(job, COMPLETION_CHUNK, TextLogprobs)
        self._unechoed = set(range(len(job.requests))) if job.options.echo_logprobs else set()

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        """One frame with all of the text, and the tokens."""
        if not events:
            return b""
        text = "".join([event.text for event in events if isinstance(event, ContentText)])
        return self._frames.detailed(choice, text, *self._reported(choice, tokens))

    def prompt_logprobs(self, choice: int, positions: Sequence[TokenLogprobs | None]) -> bytes:
        """The echoed prompt, if the request asks for its log probabilities."""
        if not self._options.echo_logprobs:
            return b""
        self._unechoed.discard(choice)
        text, ids = self._job.echo_text(choice), self._job.prompt_token_ids(choice)
        logprobs = self._logprobs[choice].prompt(text, ids, positions)
        return self._frames.detailed(choice, text, logprobs)

    def around(self, choice: int, event: Event) -> list[bytes]:
        """A chunk of text."""
        return [*self._frames.around_text(choice)]

    def closing(self, usage: Usage) -> bytes:
        """Raises InferenceFailed if an echoed prompt lacks its log probabilities."""
        if self._unechoed:
            raise InferenceFailed(NO_PROMPT_LOGPROBS)
        return super().closing(usage)


class CompletionText:
    """The text of one choice, joined when it is complete."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, events: Iterable[Event]) -> None:
        """The next texts."""
        for event in events:
            if type(event) is ContentText:
                self._pieces.append(event.text)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)
