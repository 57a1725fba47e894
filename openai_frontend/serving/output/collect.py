"""A completion as one response, gathered delta by delta."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta, TokenLogprobs
from openai_frontend.serving.output.chat_message import ChatMessageBuilder
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.logprobs import NO_PROMPT_LOGPROBS
from openai_frontend.serving.output.output_parsing import ParsedDelta


@dataclass(slots=True)
class CompletedChoice:
    """One choice with all its output."""

    pieces: list[str]  # of the text; with a parser, only the echoed text before the message
    end: OutputEnd = "stop"  # set with the last delta
    message: ChatMessageBuilder | None = None  # the parsed output
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    logits: Mapping[str, Any] = field(default_factory=dict)  # output name -> tensor

    def add(self, delta: CompletionDelta) -> None:
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
        return "".join(self.pieces)

    def logits_fields(self) -> dict[str, Any]:
        """The requested logits under the names of the model's outputs, as JSON."""
        return {name: _tensor_fields(tensor) for name, tensor in self.logits.items()}

    def mean_logprob(self) -> float:
        """The mean over its tokens, by which `best_of` ranks."""
        values = [next(iter(position.values()))["logprob"] for position in self.logprobs]
        return sum(values) / len(values) if values else 0.0


def _tensor_fields(tensor: Any) -> dict[str, Any]:
    """A tensor as Triton's datatype, the shape, and the bytes in base64."""
    data = base64.b64encode(memoryview(tensor)).decode()
    return {"datatype": tensor.dtype, "shape": list(tensor.shape), "data": data}


class Collector:
    """Gathers all choices of a job."""

    def __init__(self, job: CompletionJob) -> None:
        self._job = job
        self._progress = job.progress()
        indexes = range(len(job.requests))
        self._choices = [CompletedChoice([job.echo_text(index)]) for index in indexes]
        if job.parser is not None:
            for choice in self._choices:
                choice.message = ChatMessageBuilder(job.tools)

    def feed(self, index: int, deltas: Iterable[CompletionDelta]) -> None:
        """Add one choice's burst."""
        choice = self._choices[index]
        for delta in deltas:
            choice.add(delta)
            end = self._progress.add(index, delta)
            if end is not None:
                choice.end = end

    def finish(self) -> tuple[list[CompletedChoice], Usage]:
        """The choices in order, and the usage. Raises InferenceFailed for incomplete output."""
        self._progress.check_finished()
        if self._job.options.echo_logprobs and not all(
            choice.prompt_logprobs for choice in self._choices
        ):
            raise InferenceFailed(NO_PROMPT_LOGPROBS)
        return self._choices, self._progress.usage()


async def collect(job: CompletionJob) -> tuple[list[CompletedChoice], Usage]:
    """Generate all output, and count its tokens."""
    collector = Collector(job)
    async with aclosing(job.bursts()) as bursts:
        async for burst in bursts:
            for index, deltas in burst:
                collector.feed(index, deltas)
    return collector.finish()
