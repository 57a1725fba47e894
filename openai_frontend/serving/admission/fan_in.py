"""Several streams of bursts as one. Never looks into a burst."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

Burst = TypeVar("Burst")


async def merge_streams(
    streams: Sequence[AsyncGenerator[Burst, None]], at_once: int | None = None
) -> AsyncGenerator[list[tuple[int, Burst]], None]:
    """What came from all streams since the last look, each burst with its stream's index.

    `at_once` of them run at a time, in their order; None: all. The first stream that fails ends
    them all, after the bursts that came before. Closing this generator closes every stream.
    """
    mailbox = _Mailbox[Burst](streams, at_once or len(streams))
    try:
        while (bursts := await mailbox.take()) is not None:
            yield bursts
    finally:
        await mailbox.close()


class _Mailbox(Generic[Burst]):
    """Tasks put the bursts of streams here. It holds no more than the answers' lengths allow."""

    def __init__(self, streams: Sequence[AsyncGenerator[Burst, None]], at_once: int) -> None:
        self._waiting = iter(enumerate(streams))
        self._bursts: list[tuple[int, Burst]] = []
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._pumps = {asyncio.ensure_future(self._take_turns()) for _ in range(at_once)}
        self._running = set(self._pumps)
        for pump in self._pumps:
            pump.add_done_callback(self._ended)

    async def _take_turns(self) -> None:
        for index, stream in self._waiting:
            await self._pump(index, stream)

    async def _pump(self, index: int, stream: AsyncGenerator[Burst, None]) -> None:
        async with aclosing(stream):
            async for burst in stream:
                self._bursts.append((index, burst))
                self._wake.set()

    def _ended(self, pump: "asyncio.Task[None]") -> None:
        self._running.discard(pump)
        if not pump.cancelled() and self._failure is None:
            self._failure = pump.exception()
        self._wake.set()

    async def take(self) -> list[tuple[int, Burst]] | None:
        """All that has come, at least one burst; None once every stream has ended."""
        while not self._bursts and self._failure is None and self._running:
            self._wake.clear()
            await self._wake.wait()
        bursts, self._bursts = self._bursts, []
        if bursts:
            return bursts
        if self._failure is not None:
            raise self._failure
        return None

    async def close(self) -> None:
        """Ends the streams that still run, and waits until each has cleaned up after itself."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
