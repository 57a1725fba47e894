"""A job's output as a whole, gathered event by event."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from openai_frontend.generation import CompletionDelta, TokenLogprobs
from openai_frontend.parsing.events import ContentText, Event
from openai_frontend.serving.output.completion_job import (
    STOPPED,
    CompletionJob,
    OutputEnd,
    Usage,
)
from openai_frontend.serving.output.output_parsing import ParsedDelta


class Fold(Protocol):
    """The sum of one choice's events, in the form of a dialect."""

    def add(self, events: Iterable[Event]) -> None:
        """The next events."""


Output = TypeVar("Output", bound=Fold)


@dataclass(slots=True)
class CompletedChoice(Generic[Output]):
    """One choice with all its output."""

    output: Output
    end: OutputEnd = STOPPED  # set with the last delta
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    logits: Mapping[str, Any] = field(default_factory=dict)  # output name -> tensor

    def add(self, delta: CompletionDelta) -> None:
        if type(delta) is ParsedDelta:
            self.output.add(delta.events)
        elif delta.text:
            self.output.add((ContentText(delta.text),))
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.counts is not None and delta.counts.logits:
            self.logits = delta.counts.logits

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


class Collector(Generic[Output]):
    """Gathers all choices of a job."""

    def __init__(self, job: CompletionJob, new_output: Callable[[], Output]) -> None:
        """`new_output` makes the empty output of a choice."""
        self._progress = job.progress()
        self._choices = [CompletedChoice(new_output()) for _ in job.requests]

    def feed(self, index: int, deltas: Iterable[CompletionDelta]) -> None:
        """Add one choice's burst."""
        choice = self._choices[index]
        for delta in deltas:
            choice.add(delta)
            end = self._progress.add(index, delta)
            if end is not None:
                choice.end = end

    def finish(self) -> tuple[list[CompletedChoice[Output]], Usage]:
        """The choices in order, and the usage. Raises InferenceFailed for incomplete output."""
        self._progress.check_finished()
        return self._choices, self._progress.usage()


async def collect(
    job: CompletionJob, new_output: Callable[[], Output]
) -> tuple[list[CompletedChoice[Output]], Usage]:
    """Generate all output, and count its tokens."""
    collector, bursts = Collector(job, new_output), job.bursts()
    try:  # `aclosing` takes six calls more
        async for burst in bursts:
            for index, deltas in burst:
                collector.feed(index, deltas)
    finally:
        await bursts.aclose()
    return collector.finish()
