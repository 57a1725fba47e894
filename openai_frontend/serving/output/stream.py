"""A completion as chunks: which frames are sent, and in what order. `sse.py` knows their bytes.

Synchronous. `collect.py` reads the same deltas, so a stream and a whole response cannot disagree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    CompletionDelta,
    FrameWriter,
    Resume,
    SegmentEnd,
    SegmentRelay,
    TextRelay,
    TokenLogprobs,
    merge_deltas,
)
from openai_frontend.parsing.events import ContentText, OpenSegment, ReasoningText
from openai_frontend.serving.output.chat_message import ChatDeltas, Delta
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.output.logprobs import (
    NO_PROMPT_LOGPROBS,
    ChatLogprobs,
    TextLogprobs,
    logprobs_writer,
)
from openai_frontend.serving.output.output_parsing import ParsedDelta, merge_parsed
from openai_frontend.serving.output.response_fields import (
    finish_reason,
    leading_fields,
    usage_fields,
)
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.serving.request.tools import Tools
from openai_frontend.sse import DONE, ChunkFrames, ChunkShape, Logprobs

Join = Callable[[Sequence[CompletionDelta]], CompletionDelta]

# Of output that the relay writes before it is parsed. The parser takes 0.1 ms for as much text, and
# up to 4 ms for as much JSON of short numbers.
_MAX_TEXT_BYTES, _MAX_JSON_BYTES = 16 * 1024, 2 * 1024


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


class ParsedChoiceFrames:
    """One choice's parsed deltas as frames.

    Tokens without visible output, such as those of a marker, are reported with the next frame, so
    that each frame accounts for all tokens since the one before.
    """

    def __init__(
        self, index: int, frames: ChunkFrames, options: ResponseOptions, tools: Tools
    ) -> None:
        self._index = index
        self._frames = frames
        self._options = options
        self._deltas = ChatDeltas(tools)
        self._positions: list[TokenLogprobs] = []
        self._ids: list[int] = []

    def feed(self, delta: ParsedDelta, logprobs: ChatLogprobs | None) -> bytes:
        """The frames of a delta; `logprobs` writes log probabilities if they were requested."""
        if self._options.plain:
            return b"".join([self._frame(each) for each in self._chat_deltas(delta)])
        if logprobs is not None:
            self._positions += delta.logprobs or ()
        if self._options.token_ids:
            self._ids += delta.token_ids
        deltas = [*self._chat_deltas(delta)]
        if not deltas and delta.finish_reason is not None and (self._positions or self._ids):
            deltas = [{}]
        return b"".join([self._frame(each, *self._take_tokens(logprobs)) for each in deltas])

    def around(self, segment: OpenSegment) -> list[bytes] | None:
        """The constant parts of the frames with the segment's text; None if they need more."""
        template = self._deltas.template(segment.event)
        return None if template is None else self._frames.around_delta(self._index, template)

    def _chat_deltas(self, delta: ParsedDelta) -> list[Delta]:
        events = delta.events
        if len(events) == 1 and type(events[0]) is ContentText:  # the usual token
            return [{"content": events[0].text}]
        return self._deltas.of(events)

    def _frame(
        self,
        delta: Delta,
        logprobs: Logprobs | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> bytes:
        return self._frames.delta(self._index, delta, logprobs, fields)

    def _take_tokens(
        self, logprobs: ChatLogprobs | None
    ) -> tuple[Logprobs | None, Mapping[str, Any] | None]:
        """Log probabilities and fields of the pending tokens, which are pending no longer."""
        positions, ids = self._positions, self._ids
        self._positions, self._ids = [], []
        written = None if logprobs is None or not positions else logprobs.fragment(positions)
        return written, {"token_ids": ids} if self._options.token_ids else None


class ChunkStream:
    """The frames of a stream, in order.

    Every choice's opening frame, then deltas as they arrive, each choice's finish reason once, the
    usage frame if requested, [DONE].
    """

    def __init__(
        self,
        job: CompletionJob,
        shape: ChunkShape,
        logprobs: type[ChatLogprobs | TextLogprobs],
    ) -> None:
        """`logprobs` is the endpoint's form of log probabilities."""
        self._job = job
        self._options = options = job.options
        self._progress = job.progress()
        self._plain = options.plain and job.parser is None
        wanted = options.logprobs is not None
        self._writers = [
            logprobs_writer(job.model, job.options, logprobs) for _ in job.requests if wanted
        ]
        self._unechoed = set(range(len(job.requests))) if options.echo_logprobs else set()
        interval = 1 if options.coalesced_by_engine else options.interval
        join = merge_deltas if job.parser is None else merge_parsed
        self._coalescers = [DeltaCoalescer(interval, join) for _ in job.requests if interval > 1]
        self._frames = ChunkFrames(
            shape,
            leading_fields(job),
            choices=len(job.requests),
            usage_field=options.include_usage,
            obfuscate=options.obfuscate,
        )
        self._segments: SegmentRelay | None = None
        self._segment: OpenSegment | None = None
        self._parsed_frames = [
            ParsedChoiceFrames(index, self._frames, options, job.tools)
            for index in range(len(job.requests))
            if job.parser is not None
        ]

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return self._progress.finished

    def start(self) -> bytes:
        """Frames before the first token: none for completions without echo."""
        if self._options.continuous_usage:
            self._frames.usage_so_far(usage_fields(self._progress.usage()))
        choices = range(len(self._job.requests))
        prompts = [self._prompt_fields(choice) for choice in choices]
        opening = self._frames.opening(prompts, may_call=self._job.tools.in_use)
        frames = [self._before_output(choice, opened=bool(opening)) for choice in choices]
        return b"".join([opening, *frames])

    def _before_output(self, choice: int, *, opened: bool) -> bytes:
        """The echoed prompt, and its token ids unless an opening frame had them."""
        text = "" if self._options.echo_logprobs else self._job.echo_text(choice)
        fields = {} if opened else self._prompt_fields(choice)
        return self._frames.detailed(choice, text, fields=fields) if text or fields else b""

    def _prompt_fields(self, choice: int) -> dict[str, Any]:
        if not self._options.token_ids:
            return {}
        return {"prompt_token_ids": self._job.prompt_token_ids(choice)}

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
        if self._job.parser is None:
            return relay.take(*self._frames.around_text(0), write)
        self._segments = relay.take_segments(write)
        return None if self._segments is None else self._segments.resume

    def _relay_logprobs(self, relay: TextRelay, write: FrameWriter) -> Resume | None:
        writer, top = next(iter(self._writers), None), self._options.logprobs
        if not isinstance(writer, ChatLogprobs) or top is None or not self._options.only_logprobs:
            return None
        around = self._frames.around_logprobs(0)
        if (taken := relay.take_logprobs(around, top, write)) is None:
            return None
        writer.on_rendered, resume = taken
        return resume

    def relay_segment(self) -> None:
        """Send what the next output continues to the writer of `relay`, if it needs no parser for
        that. Called after the frames of a burst were written.
        """
        segment, self._segment = self._segment, None
        if self._segments is None or segment is None:
            return
        parser, event = self._job.parser, segment.event
        shown = parser is None or parser.include_reasoning or not isinstance(event, ReasoningText)
        around = self._parsed_frames[0].around(segment) if shown else []
        if around is None:
            return
        room = _MAX_TEXT_BYTES if segment.json is None else _MAX_JSON_BYTES
        if segment.max_bytes is not None:
            room = min(room, segment.max_bytes)
        end = SegmentEnd(max_bytes=room, markers=segment.markers, json=segment.json)
        self._segments.begin(around, end)

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> bytes:
        """Frames of one choice's burst."""
        if not self._plain:
            return b"".join([self._detailed(choice, delta) for delta in deltas])
        frames = []
        count, text_frame = self._progress.add, self._frames.text
        for delta in deltas:
            if delta.finish_reason is None and delta.counts is None and not delta.token_ids:
                if delta.text:  # the usual token: only text
                    frames.append(text_frame(choice, delta.text))
                continue
            end = count(choice, delta)
            if self._options.continuous_usage:
                self._frames.usage_so_far(usage_fields(self._progress.usage()))
            if delta.text:
                frames.append(text_frame(choice, delta.text))
            if end is not None:
                frames.append(self._frames.finish(choice, finish_reason(end, self._job.tools)))
        return b"".join(frames)

    def _detailed(self, choice: int, delta: CompletionDelta) -> bytes:
        """Frames of a delta whose chunk holds more than text."""
        end = self._progress.add(choice, delta)
        due = self._coalescers[choice].feed(delta) if self._coalescers else delta
        if due is None:
            return b""
        if self._options.continuous_usage:
            self._frames.usage_so_far(usage_fields(self._progress.usage()))
        if isinstance(due, ParsedDelta):
            self._segment = due.segment
            frames = [self._parsed(choice, due)]
        else:
            frames = [self._echo(choice, due), self._tokens(choice, due)]
        if end is not None:
            frames.append(self._frames.finish(choice, finish_reason(end, self._job.tools)))
        return b"".join(frames)

    def _echo(self, choice: int, delta: CompletionDelta) -> bytes:
        """The echoed prompt, once the model has reported its log probabilities.

        Only completions can request this.
        """
        if delta.prompt_logprobs is None or not self._options.echo_logprobs:
            return b""
        writer = self._writers[choice]
        if not isinstance(writer, TextLogprobs):
            return b""
        self._unechoed.discard(choice)
        text, ids = self._job.echo_text(choice), self._job.prompt_token_ids(choice)
        logprobs = writer.prompt(text, ids, delta.prompt_logprobs)
        return self._frames.detailed(choice, text, logprobs)

    def _tokens(self, choice: int, delta: CompletionDelta) -> bytes:
        positions = delta.logprobs if self._options.logprobs is not None else None
        fields = {"token_ids": list(delta.token_ids)} if self._options.token_ids else None
        if not (delta.text or positions or (fields and delta.token_ids)):
            return b""
        logprobs = self._writers[choice].fragment(positions) if positions else None
        return self._frames.detailed(choice, delta.text, logprobs, fields)

    def _parsed(self, choice: int, delta: ParsedDelta) -> bytes:
        writer = self._writers[choice] if self._writers else None
        logprobs = writer if isinstance(writer, ChatLogprobs) else None
        return self._parsed_frames[choice].feed(delta, logprobs)

    def finish(self) -> bytes:
        """The end of the stream. Raises InferenceFailed if the model's stream is incomplete."""
        self._progress.check_finished()
        if self._unechoed:
            raise InferenceFailed(NO_PROMPT_LOGPROBS)
        if not self._options.include_usage:
            return DONE
        return self._frames.usage(usage_fields(self._progress.usage())) + DONE
