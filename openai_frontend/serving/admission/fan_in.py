"""Runs a bounded number of streams or calls at the same time and combines what they give."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

Burst = TypeVar("Burst")
Item = TypeVar("Item")
Result = TypeVar("Result")


async def merge_streams(
    streams: Sequence[AsyncGenerator[Burst, None]], max_parallel: int | None = None
) -> AsyncGenerator[list[tuple[int, Burst]], None]:
    """Bursts that arrived since the last step, each with its stream's index.

    Runs `max_parallel` streams at the same time, in order; None runs all. The first failure ends
    all streams, after the bursts that preceded it. Closing this generator closes every stream.
    """
    mailbox = _Mailbox[Burst](streams, max_parallel or len(streams))
    try:
        while (bursts := await mailbox.take()) is not None:
            yield bursts
    finally:
        await mailbox.close()


class _Mailbox(Generic[Burst]):
    """Collects bursts from a task per running stream; the output's length bounds its size."""

    def __init__(self, streams: Sequence[AsyncGenerator[Burst, None]], max_parallel: int) -> None:
        self._waiting = iter(enumerate(streams))
        self._bursts: list[tuple[int, Burst]] = []
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._pumps = {asyncio.ensure_future(self._run_next_streams()) for _ in range(max_parallel)}
        self._running = set(self._pumps)
        for pump in self._pumps:
            pump.add_done_callback(self._ended)

    async def _run_next_streams(self) -> None:
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
        """Wait for bursts and return all that arrived; None once every stream has ended."""
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
        """Cancel running streams and wait for their cleanup."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


async def gather_bounded(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], max_parallel: int
) -> list[Result]:
    """Results of `work` in the order of `items`. The first failure cancels the rest."""
    if len(items) == 1:  # no task
        return [await work(items[0])]
    results: dict[int, Result] = {}
    waiting = iter(enumerate(items))

    async def run_next_items() -> None:
        for index, item in waiting:
            results[index] = await work(item)

    await _all_or_none([asyncio.ensure_future(run_next_items()) for _ in range(max_parallel)])
    return [results[index] for index in range(len(items))]


async def _all_or_none(tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait for all tasks. If one fails or the caller is cancelled, cancel the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
