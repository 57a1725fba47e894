"""How many generations run at the same time, over all requests."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from openai_frontend.errors import ServerOverloaded
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.merge import merged

Deltas = AsyncGenerator[list[CompletionDelta], None]
Bursts = AsyncGenerator[list[tuple[int, list[CompletionDelta]]], None]

# Enough to fill an engine's batches; one call leaves room for others, and its memory is bounded.
AT_ONCE = 128


class Admission:
    """Counts what runs. A call that finds no place is refused rather than queued; one that wants
    more places than there are runs as many at a time as there is room for.
    """

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self.running = 0

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
            self.running -= at_once

    @contextmanager
    def room(self, wanted: int) -> Iterator[int]:
        """How many of `wanted` requests may run at a time: at least one, as many as fit."""
        granted = self._take(wanted)
        try:
            yield granted
        finally:
            self.running -= granted

    def _take(self, wanted: int) -> int:
        granted = min(wanted, AT_ONCE, self._max_streams - self.running)
        if granted < 1:
            message = f"The server runs {self.running} requests, and takes {self._max_streams}."
            raise ServerOverloaded(message)
        self.running += granted
        return granted
