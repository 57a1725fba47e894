"""How many generations run at the same time, over all requests."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from openai_frontend.errors import ServerOverloaded
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.merge import merged

Deltas = AsyncGenerator[list[CompletionDelta], None]
Bursts = AsyncGenerator[list[tuple[int, list[CompletionDelta]]], None]


class Admission:
    """Counts what runs; one generation too many is refused rather than queued."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self.running = 0

    async def bursts(self, generations: Sequence[Deltas]) -> Bursts:
        """The deltas of all, with each one's index; they count until this generator is closed."""
        if self.running + len(generations) > self._max_streams:
            message = f"The server runs {self.running} generations, and takes {self._max_streams}."
            raise ServerOverloaded(message)
        self.running += len(generations)
        try:
            if len(generations) == 1:  # no task, no queue: the bursts pass through
                async with aclosing(generations[0]) as generation:
                    async for deltas in generation:
                        yield [(0, deltas)]
                return
            async with aclosing(merged(generations)) as bursts:
                async for burst in bursts:
                    yield burst
        finally:
            self.running -= len(generations)
