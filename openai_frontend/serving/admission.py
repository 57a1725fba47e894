"""How many generations run at the same time, over all requests."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from openai_frontend.errors import ServerOverloaded
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.merge import merged

Deltas = AsyncGenerator[list[CompletionDelta], None]
Bursts = AsyncGenerator[list[tuple[int, list[CompletionDelta]]], None]

# Enough to fill an engine's batches; one call leaves room for others, and its memory is bounded.
AT_ONCE = 128


class Limited(Protocol):
    """What must be known of a model."""

    @property
    def model_name(self) -> str:
        """The same for all of its names."""

    @property
    def max_streams(self) -> int | None:
        """Requests that it takes at a time; None: as many as the server."""


class Admission:
    """Counts what runs. A call that finds no place is refused rather than queued; one that wants
    more places than there are runs as many at a time as there is room for.
    """

    def __init__(self, max_streams: int, *, within: "Admission | None" = None) -> None:
        """`within`: what a model's own places are part of; None where these are all there are."""
        self._max_streams = max_streams
        self._within = within
        self._of_models: dict[str, Admission] = {}
        self.running = 0

    def set_limit(self, max_streams: int) -> None:
        """Another number of places; where more run already, they end as they would have."""
        self._max_streams = max_streams

    def of(self, model: Limited) -> "Admission":
        """The places for requests to a model: these, or its own where it has fewer."""
        if model.max_streams is None:
            return self
        own = self._of_models.get(model.model_name)
        if own is None:
            own = self._of_models[model.model_name] = Admission(model.max_streams, within=self)
        own._max_streams = model.max_streams  # a model that was loaded again may say another
        return own

    async def bursts(self, generations: Sequence[Deltas]) -> Bursts:
        """The deltas of all, with each one's index; they count until this generator is closed."""
        at_once = self._take(len(generations))
        try:
            if len(generations) == 1:  # no task, no queue: the bursts pass through
                async with aclosing(generations[0]) as generation:
                    async for deltas in generation:
                        yield [(0, deltas)]
                return
            async with aclosing(merged(generations, at_once)) as bursts:
                async for burst in bursts:
                    yield burst
        finally:
            self._give_back(at_once)

    @contextmanager
    def room(self, wanted: int) -> Iterator[int]:
        """How many of `wanted` requests may run at a time: at least one, as many as fit."""
        granted = self._take(wanted)
        try:
            yield granted
        finally:
            self._give_back(granted)

    def _take(self, wanted: int) -> int:
        granted = min(wanted, AT_ONCE, self._max_streams - self.running)
        if granted < 1:
            who = "The server" if self._within is None else "The model"
            message = f"{who} runs {self.running} requests, and takes {self._max_streams}."
            raise ServerOverloaded(message)
        if self._within is not None:
            granted = self._within._take(granted)
        self.running += granted
        return granted

    def _give_back(self, granted: int) -> None:
        self.running -= granted
        if self._within is not None:
            self._within._give_back(granted)
