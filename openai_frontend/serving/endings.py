"""The two endings of an answer: chunks as it is made, or the whole. Synchronous; no bytes of ours.

Both are fed with the same deltas, so a stream and a whole answer cannot disagree.
"""

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass

from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.answer import Answer
from openai_frontend.sse import DONE, ChunkFrames, ChunkShape
from schemas.chat_completions import FinishReason
from schemas.sampling import StreamOptions
from schemas.usage import CompletionUsage


class ChunkStream:
    """The order of a stream's frames; `sse.py` knows their bytes.

    First every choice's opening frame, then text as it comes, each choice's finish reason once,
    the usage frame where it was asked for, [DONE].
    """

    def __init__(self, answer: Answer, shape: ChunkShape) -> None:
        options = answer.stream_options or StreamOptions()
        self._answer = answer
        self._tally = answer.tally()
        self._include_usage = bool(options.include_usage)
        self._continuous = bool(options.continuous_usage_stats)
        self._frames = ChunkFrames(
            shape,
            id=answer.id,
            created=answer.created,
            model=answer.model.name,
            choices=len(answer.requests),
            usage_field=self._include_usage,
        )

    @property
    def finished(self) -> bool:
        """True once every choice has its finish reason; only the end follows."""
        return self._tally.finished

    def start(self) -> bytes:
        """What leaves before any token: nothing for completions that echo nothing."""
        frames = [self._frames.opening()]
        if self._answer.echo:
            choices = range(len(self._answer.requests))
            frames += [self._frames.text(each, self._answer.echoed(each)) for each in choices]
        return b"".join(frames)

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> bytes:
        """The frames of one choice's burst."""
        frames = []
        add_up, text_frame = self._tally.add, self._frames.text
        for delta in deltas:
            if delta.finish_reason is None and delta.counts is None and not delta.token_ids:
                if delta.text:  # the usual token: text and nothing to count
                    frames.append(text_frame(choice, delta.text))
                continue
            reason = add_up(choice, delta)
            if self._continuous:
                self._frames.usage_so_far(self._tally.usage().model_dump())
            if delta.text:
                frames.append(text_frame(choice, delta.text))
            if reason is not None:
                frames.append(self._frames.finish(choice, reason))
        return b"".join(frames)

    def finish(self) -> bytes:
        """What ends the stream, once the model's stream has ended."""
        self._tally.check_finished()
        if not self._include_usage:
            return DONE
        return self._frames.usage(self._tally.usage().model_dump()) + DONE


@dataclass(slots=True)
class Whole:
    """One choice, complete."""

    text: str
    finish_reason: FinishReason


class Collector:
    """The whole of an answer, gathered delta by delta."""

    def __init__(self, answer: Answer) -> None:
        self._tally = answer.tally()
        self._texts: list[list[str]] = [
            [answer.echoed(choice)] for choice in range(len(answer.requests))
        ]
        self._reasons: dict[int, FinishReason] = {}

    def feed(self, choice: int, deltas: Iterable[CompletionDelta]) -> None:
        """Adds one choice's burst."""
        for delta in deltas:
            self._texts[choice].append(delta.text)
            reason = self._tally.add(choice, delta)
            if reason is not None:
                self._reasons[choice] = reason

    def finish(self) -> tuple[list[Whole], CompletionUsage]:
        """The choices in order, and the tokens they took."""
        self._tally.check_finished()
        texts = enumerate(self._texts)
        wholes = [Whole("".join(text), self._reasons[choice]) for choice, text in texts]
        return wholes, self._tally.usage()


async def collect(answer: Answer) -> tuple[list[Whole], CompletionUsage]:
    """Generates the answer to its end."""
    collector = Collector(answer)
    async with aclosing(answer.bursts()) as bursts:
        async for burst in bursts:
            for choice, deltas in burst:
                collector.feed(choice, deltas)
    return collector.finish()
