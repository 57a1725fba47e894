"""A job's output as a stream: which events are written, and in what order.

Synchronous, and the same for every dialect, whose `Writer` knows the bytes. `collect.py` reads the
same events, so a stream and a whole response cannot disagree.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from openai_frontend.generation import CompletionDelta, TokenLogprobs, merge_deltas
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    OpenSegment,
    ReasoningText,
    ToolCallArguments,
)
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.output_parsing import ParsedDelta, merge_parsed
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.text_relay import (
    AddToken,
    EventNumbers,
    FrameWriter,
    Resume,
    SegmentEnd,
    SegmentRelay,
    TextRelay,
)

Join = Callable[[Sequence[CompletionDelta]], CompletionDelta]

# Limits of a relayed segment, which is parsed later. The parser takes 0.1 ms for as much text, and
# up to 4 ms for as much JSON of short numbers.
_MAX_TEXT_BYTES, _MAX_JSON_BYTES = 16 * 1024, 2 * 1024
_PLAIN_TEXT = OpenSegment(ContentText(""))  # output that no parser reads


class DeltaCoalescer:
    """Joins one choice's deltas until they have `tokens` tokens.

    Passes on the first delta immediately, since a client waits for it, and also the last.
    """

    def __init__(self, tokens: int, join: Join = merge_deltas) -> None:
        self._tokens = tokens
        self._join = join
        self._pending: list[CompletionDelta] = []
        self._count = tokens - 1  # so that the first delta is due

    def feed(self, delta: CompletionDelta) -> CompletionDelta | None:
        """The pending deltas and this one, joined; None until there are enough tokens."""
        self._pending.append(delta)
        # a model that reports no token ids sends one token at a time
        self._count += len(delta.token_ids) or 1
        if self._count < self._tokens and delta.finish_reason is None:
            return None
        pending, self._pending, self._count = self._pending, [], 0
        return pending[0] if len(pending) == 1 else self._join(pending)


class UnreportedTokens:
    """Tokens of one choice that no event of the stream has reported yet.

    Tokens without visible output, such as those of a marker, are reported with the next event, so
    that each event accounts for all tokens since the one before.
    """

    __slots__ = ("_ids", "_logprobs", "_wants_ids", "_wants_logprobs")

    def __init__(self, options: ResponseOptions) -> None:
        self._wants_logprobs = options.logprobs is not None
        self._wants_ids = options.token_ids
        self._logprobs: list[TokenLogprobs] = []
        self._ids: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._logprobs or self._ids)

    def add(self, delta: CompletionDelta) -> None:
        """Add the tokens of a delta, as far as the response reports them."""
        if self._wants_logprobs:
            self._logprobs += delta.logprobs or ()
        if self._wants_ids:
            self._ids += delta.token_ids

    def take(self) -> tuple[list[TokenLogprobs], list[int]]:
        """Their log probabilities and their ids. They count as reported from now on."""
        taken = self._logprobs, self._ids
        self._logprobs, self._ids = [], []
        return taken


class Writer(Protocol):
    """Writes the events of one stream in a dialect's form. Choices are numbered from 0."""

    @property
    def numbers(self) -> EventNumbers | None:
        """Numbers the events; None if the dialect does not."""

    def opening(self) -> bytes:
        """The beginning of the stream."""

    def text(self, choice: int, text: str) -> bytes:
        """`events` of one ContentText, in a stream that reports nothing but text."""

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        """Events of a choice, which take the tokens that they report. None: there is nothing to
        report but events.
        """

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        """The end of a choice, and the tokens that no event has reported."""

    def closing(self, usage: Usage) -> bytes:
        """The end of the stream. Raises InferenceFailed if the model left out what it reports."""

    def count(self, usage: Usage) -> None:
        """The counts so far, before each call that adds to the stream, if the request asks for
        `continuous_usage`.
        """

    def prompt_logprobs(self, choice: int, positions: Sequence[TokenLogprobs | None]) -> bytes:
        """The log probabilities of the prompt, once the model has reported them."""

    def around(
        self, choice: int, event: ContentText | ReasoningText | ToolCallArguments
    ) -> list[bytes] | None:
        """The constant parts of what is written for such an event, between which its text belongs
        as a JSON string, with `NUMBER_SLOT` where its number belongs. None if it is more than that.
        """

    def around_logprobs(self, choice: int) -> tuple[bytes, bytes, bytes] | None:
        """The constant parts of one ContentText with log probabilities: before its text, before its
        tokens, and after them. None if the dialect writes them in another form than chats.
        """

    def on_token(self, choice: int, known: AddToken) -> None:
        """Call `known` with each token that is written with log probabilities from now on."""

    def relayed(self, choice: int, events: Sequence[Event]) -> None:
        """Events that a relay has written, between those of `events`, if the job repeats its output
        at the end of the stream.
        """

    def keep_alive(self) -> bytes | None:
        """An event for a stream without data for some seconds; None: a comment is enough."""

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """The end of a stream that failed. `unsent`: the opening, if it has not been sent."""


class StreamDriver:
    """Drives the writer of one stream.

    The opening, then events as they arrive, the end of each choice once, the closing.
    """

    def __init__(self, job: CompletionJob, writer: Writer) -> None:
        self._job = job
        self._options = options = job.options
        self._writer = writer
        self._progress = job.progress()
        self._repeats = job.repeats_output
        # nothing but text
        self._bare = options.plain and job.parser is None and not self._repeats
        choices = len(job.requests)
        self._unreported = [UnreportedTokens(options) for _ in range(choices) if not options.plain]
        interval = 1 if options.coalesced_by_engine else options.interval
        join = merge_deltas if job.parser is None else merge_parsed
        self._coalescers = [DeltaCoalescer(interval, join) for _ in range(choices) if interval > 1]
        self._segments: SegmentRelay | None = None
        self._segment: OpenSegment | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return self._progress.finished

    def start(self) -> bytes:
        """Open the stream, before the first token."""
        if self._options.continuous_usage:
            self._writer.count(self._progress.usage())
        return self._writer.opening()

    def relay(self, write: FrameWriter) -> Resume | None:
        """Send text that needs only its frame to `write` from now on, past `feed`.

        Returns what resumes the relay after `write` has paused it; None if every delta must be fed,
        because it is counted or belongs to one of several choices.
        """
        requests, options = self._job.requests, self._options
        relay = requests[0].relay
        if relay is None or len(requests) != 1 or options.continuous_usage:
            return None
        if self._job.parser is None and not options.plain:
            return self._relay_logprobs(relay, write)
        if not options.plain:
            return None
        if self._job.parser is None and not self._repeats:
            around = self._writer.around(0, ContentText(""))
            if around is None or len(around) != 2:  # its text occurs once
                return None
            return relay.take(around[0], around[1], write, self._writer.numbers)
        self._segments = relay.take_segments(write, self._writer.numbers)
        return None if self._segments is None else self._segments.resume

    def _relay_logprobs(self, relay: TextRelay, write: FrameWriter) -> Resume | None:
        top, around = self._options.logprobs, self._writer.around_logprobs(0)
        if around is None or top is None or not self._options.only_logprobs:
            return None
        if (taken := relay.take_logprobs(around, top, write)) is None:
            return None
        known, resume = taken
        self._writer.on_token(0, known)
        return resume

    def relay_segment(self) -> None:
        """Send what the next output continues to the writer of `relay`, if it needs no parser for
        that. Called after the events of a burst were written.
        """
        segment, self._segment = self._segment, None
        if self._segments is None or segment is None:
            return
        parser, event = self._job.parser, segment.event
        shown = parser is None or parser.include_reasoning or not isinstance(event, ReasoningText)
        around = self._writer.around(0, event) if shown else []
        if around is None:
            return
        room = _MAX_TEXT_BYTES if segment.json is None else _MAX_JSON_BYTES
        if segment.max_bytes is not None:
            room = min(room, segment.max_bytes)
        end = SegmentEnd(max_bytes=room, markers=segment.markers, json=segment.json)
        self._segments.begin(around, end)

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> bytes:
        """Write one choice's burst."""
        written, bare, text = [], self._bare, self._writer.text
        for delta in deltas:
            ends = delta.finish_reason is not None or delta.counts is not None
            if not bare or ends or delta.token_ids:
                written.append(self._write(choice, delta))
            elif delta.text:  # the usual token: only text
                written.append(text(choice, delta.text))
        return b"".join(written)

    def _write(self, choice: int, delta: CompletionDelta) -> bytes:
        end = self._progress.add(choice, delta)
        due = self._coalescers[choice].feed(delta) if self._coalescers else delta
        if due is None:
            return b""
        if self._options.continuous_usage:
            self._writer.count(self._progress.usage())
        tokens = self._unreported[choice] if self._unreported else None
        prompt = due.prompt_logprobs
        before = b"" if prompt is None else self._writer.prompt_logprobs(choice, prompt)
        written = before + self._events(choice, due, tokens)
        return written if end is None else written + self._writer.finish(choice, end, tokens)

    def _events(
        self, choice: int, delta: CompletionDelta, tokens: UnreportedTokens | None
    ) -> bytes:
        if tokens is not None:
            tokens.add(delta)
        events: Sequence[Event]
        if isinstance(delta, ParsedDelta):
            self._segment, events = delta.segment, delta.events
        elif tokens is None:
            self._segment = _PLAIN_TEXT if self._repeats else None
            events = [ContentText(delta.text)] if delta.text else []
        else:
            events = [ContentText(delta.text)] if delta.text or tokens else []
        if delta.relayed:
            if self._repeats:
                self._writer.relayed(choice, events)
            return b""
        if tokens is None and len(events) == 1 and type(events[0]) is ContentText:
            return self._writer.text(choice, events[0].text)  # the usual token
        return self._writer.events(choice, events, tokens)

    def keep_alive(self) -> bytes | None:
        """See `Writer.keep_alive`."""
        return self._writer.keep_alive()

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """See `Writer.failure`."""
        return self._writer.failure(failure, unsent)

    def finish(self) -> bytes:
        """The end of the stream. Raises InferenceFailed if the model's stream is incomplete."""
        self._progress.check_finished()
        return self._writer.closing(self._progress.usage())
