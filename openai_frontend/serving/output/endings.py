"""The two endings of an answer: chunks as it is made, or the whole. Synchronous; no bytes of ours.

Both are fed with the same deltas, so a stream and a whole answer cannot disagree.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import (
    ChunkedSocket,
    CompletionDelta,
    FrameWriter,
    Resume,
    TokenLogprobs,
    merge_deltas,
)
from openai_frontend.serving.output.chat_message import ChatMessageBuilder
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.output.interval import DeltaCoalescer
from openai_frontend.serving.output.logprobs import ChatLogprobs, TextLogprobs, TokenNames
from openai_frontend.serving.output.output_parsing import ParsedDelta, merge_parsed
from openai_frontend.serving.output.read_choice import ParsedChoiceFrames
from openai_frontend.sse import DONE, ChunkFrames, ChunkShape
from schemas.chat_completions import FinishReason
from schemas.usage import CompletionUsage

_NOTHING_OF_THE_PROMPT = "the model told no log probabilities of the prompt"

Logprobs = TypeVar("Logprobs", bound=ChatLogprobs | TextLogprobs)


def logprobs_writer(answer: CompletionJob, form: type[Logprobs]) -> Logprobs:
    """A writer for one choice, in the form that its kind of answer has."""
    names = TokenNames(answer.model.token_bytes, as_ids=answer.details.tokens_as_ids)
    return form(names, answer.details.alternatives())


class ChunkStream:
    """The order of a stream's frames; `sse.py` knows their bytes.

    First every choice's opening frame, then text as it comes, each choice's finish reason once,
    the usage frame where it was asked for, [DONE].
    """

    def __init__(
        self,
        answer: CompletionJob,
        shape: ChunkShape,
        logprobs: type[ChatLogprobs | TextLogprobs],
    ) -> None:
        """`logprobs` is the form that this kind of chunk has for log probabilities."""
        details = answer.details
        self._answer = answer
        self._details = details
        self._tally = answer.tally()
        self._plain = details.plain and answer.reading is None
        told = details.logprobs is not None
        self._writers = [logprobs_writer(answer, logprobs) for _ in answer.requests if told]
        self._unechoed = set(range(len(answer.requests))) if details.echo_logprobs else set()
        interval = 1 if details.gathered else details.interval
        join = merge_deltas if answer.reading is None else merge_parsed
        self._intervals = [DeltaCoalescer(interval, join) for _ in answer.requests if interval > 1]
        self._frames = ChunkFrames(
            shape,
            answer.fields(),
            choices=len(answer.requests),
            usage_field=details.include_usage,
            obfuscate=details.obfuscate,
        )
        self._read_choices = [
            ParsedChoiceFrames(index, self._frames, details, answer.reading.tools)
            for index in range(len(answer.requests))
            if answer.reading is not None
        ]

    @property
    def finished(self) -> bool:
        """True once every choice has its finish reason; only the end follows."""
        return self._tally.finished

    def start(self) -> bytes:
        """What leaves before any token: nothing for completions that echo nothing."""
        if self._details.continuous_usage:
            self._frames.usage_so_far(self._tally.usage().model_dump())
        choices = range(len(self._answer.requests))
        prompts = [self._prompt_fields(choice) for choice in choices]
        reading = self._answer.reading
        may_call = reading is not None and reading.tools.in_use
        opening = self._frames.opening(prompts, may_call=may_call)
        frames = [self._before_answer(choice, opened=bool(opening)) for choice in choices]
        return b"".join([opening, *frames])

    def _before_answer(self, choice: int, *, opened: bool) -> bytes:
        """The echoed prompt, and its token ids where no opening frame has told them."""
        text = "" if self._details.echo_logprobs else self._answer.echoed(choice)
        fields = {} if opened else self._prompt_fields(choice)
        return self._frames.detailed(choice, text, fields=fields) if text or fields else b""

    def _prompt_fields(self, choice: int) -> dict[str, Any]:
        if not self._details.token_ids:
            return {}
        return {"prompt_token_ids": self._answer.prompt_token_ids(choice)}

    def relay(
        self, write: FrameWriter, socket: Callable[[], ChunkedSocket | None] = lambda: None
    ) -> Resume | None:
        """From now on, text that needs nothing but its frame goes to `write` and is not fed here.

        `socket` gives the client's own, if there is one that frames may go straight to. Returns
        what resumes a writer that has held; None where every delta is fed here: one that
        is to be counted, or stands among those of other choices.
        """
        requests = self._answer.requests
        if len(requests) != 1 or not self._plain or self._details.continuous_usage:
            return None
        relay = requests[0].relay
        if relay is None:
            return None
        return relay.take(*self._frames.around_text(0), write, socket())

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> bytes:
        """The frames of one choice's burst."""
        if not self._plain:
            return b"".join([self._detailed(choice, delta) for delta in deltas])
        frames = []
        add_up, text_frame = self._tally.add, self._frames.text
        for delta in deltas:
            if delta.finish_reason is None and delta.counts is None and not delta.token_ids:
                if delta.text:  # the usual token: text and nothing to count
                    frames.append(text_frame(choice, delta.text))
                continue
            reason = add_up(choice, delta)
            if self._details.continuous_usage:
                self._frames.usage_so_far(self._tally.usage().model_dump())
            if delta.text:
                frames.append(text_frame(choice, delta.text))
            if reason is not None:
                frames.append(self._frames.finish(choice, reason))
        return b"".join(frames)

    def _detailed(self, choice: int, delta: CompletionDelta) -> bytes:
        """The frames of a delta whose chunk holds more than text."""
        reason = self._tally.add(choice, delta)
        due = self._intervals[choice].feed(delta) if self._intervals else delta
        if due is None:
            return b""
        if self._details.continuous_usage:
            self._frames.usage_so_far(self._tally.usage().model_dump())
        if isinstance(due, ParsedDelta):
            frames = [self._read(choice, due)]
        else:
            frames = [self._echo(choice, due), self._tokens(choice, due)]
        if reason is not None:
            frames.append(self._frames.finish(choice, reason))
        return b"".join(frames)

    def _echo(self, choice: int, delta: CompletionDelta) -> bytes:
        """A prompt that is echoed with its log probabilities comes when the model tells them.

        Completions alone ask for that.
        """
        if delta.prompt_logprobs is None or not self._details.echo_logprobs:
            return b""
        writer = self._writers[choice]
        if not isinstance(writer, TextLogprobs):
            return b""
        self._unechoed.discard(choice)
        text, ids = self._answer.echoed(choice), self._answer.prompt_token_ids(choice)
        logprobs = writer.prompt(text, ids, delta.prompt_logprobs)
        return self._frames.detailed(choice, text, logprobs)

    def _tokens(self, choice: int, delta: CompletionDelta) -> bytes:
        positions = delta.logprobs if self._details.logprobs is not None else None
        fields = {"token_ids": list(delta.token_ids)} if self._details.token_ids else None
        if not (delta.text or positions or (fields and delta.token_ids)):
            return b""
        logprobs = self._writers[choice].tokens(positions) if positions else None
        return self._frames.detailed(choice, delta.text, logprobs, fields)

    def _read(self, choice: int, delta: ParsedDelta) -> bytes:
        writer = self._writers[choice] if self._writers else None
        told = writer if isinstance(writer, ChatLogprobs) else None
        return self._read_choices[choice].feed(delta, told)

    def finish(self) -> bytes:
        """What ends the stream, once the model's stream has ended."""
        self._tally.check_finished()
        if self._unechoed:
            raise InferenceFailed(_NOTHING_OF_THE_PROMPT)
        if not self._details.include_usage:
            return DONE
        return self._frames.usage(self._tally.usage().model_dump()) + DONE


@dataclass(slots=True)
class CompletedChoice:
    """One choice, complete."""

    pieces: list[
        str
    ]  # of the text; where it is read, only what stands before the message's content
    finish_reason: FinishReason | None = None
    message: ChatMessageBuilder | None = None  # what was read
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    logits: Mapping[str, Any] = field(default_factory=dict)  # output's name -> a tensor

    def add(self, delta: CompletionDelta) -> None:
        """One more delta of this choice."""
        if self.message is not None and isinstance(delta, ParsedDelta):
            self.message.add(delta.events)
        else:
            self.pieces.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.counts is not None and delta.counts.logits:
            self.logits = delta.counts.logits

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.pieces)

    def more(self) -> dict[str, Any]:
        """What was asked for by the names of the model's outputs, in JSON's means."""
        return {name: _tensor_fields(tensor) for name, tensor in self.logits.items()}

    def likelihood(self) -> float:
        """The mean log probability of its tokens, by which `best_of` ranks."""
        values = [next(iter(position.values()))["logprob"] for position in self.logprobs]
        return sum(values) / len(values) if values else 0.0


def _tensor_fields(tensor: Any) -> dict[str, Any]:
    """A tensor by Triton's name of its datatype, its shape, and its bytes."""
    data = base64.b64encode(memoryview(tensor)).decode()
    return {"datatype": tensor.dtype, "shape": list(tensor.shape), "data": data}


class Collector:
    """The whole of an answer, gathered delta by delta."""

    def __init__(self, answer: CompletionJob) -> None:
        self._answer = answer
        self._tally = answer.tally()
        choices = range(len(answer.requests))
        self._wholes = [CompletedChoice([answer.echoed(choice)]) for choice in choices]
        if answer.reading is not None:
            for whole in self._wholes:
                whole.message = ChatMessageBuilder(answer.reading.tools)

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> None:
        """Adds one choice's burst."""
        whole = self._wholes[choice]
        for delta in deltas:
            whole.add(delta)
            reason = self._tally.add(choice, delta)
            if reason is not None:
                whole.finish_reason = reason

    def finish(self) -> tuple[list[CompletedChoice], CompletionUsage]:
        """The choices in order, and the tokens they took."""
        self._tally.check_finished()
        if self._answer.details.echo_logprobs and not all(
            whole.prompt_logprobs for whole in self._wholes
        ):
            raise InferenceFailed(_NOTHING_OF_THE_PROMPT)
        return self._wholes, self._tally.usage()


async def collect(answer: CompletionJob) -> tuple[list[CompletedChoice], CompletionUsage]:
    """Generates the answer to its end."""
    collector = Collector(answer)
    async with aclosing(answer.bursts()) as bursts:
        async for burst in bursts:
            for choice, deltas in burst:
                collector.feed(choice, deltas)
    return collector.finish()
