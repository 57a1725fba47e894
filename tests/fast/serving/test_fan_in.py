import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from openai_frontend.serving.admission.concurrency_limit import merge_streams


class Stream:
    """Yields the items that a test puts in. None ends it; an exception fails it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.closed = False

    async def bursts(self) -> AsyncGenerator[str, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def put(stream: Stream, *items: str | Exception | None) -> None:
    for item in items:
        stream.queue.put_nowait(item)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bursts_since_the_last_wake_up_come_as_one_list():
    """They are in order of arrival."""
    streams = [Stream(), Stream()]
    async with aclosing(merge_streams([each.bursts() for each in streams])) as bursts:
        put(streams[1], "x")
        first = await anext(bursts)
        put(streams[0], "a", "b")
        put(streams[1], "y", None)
        await settle()
        second = await anext(bursts)

    assert first == [(1, "x")]
    assert sorted(second) == [(0, "a"), (0, "b"), (1, "y")]


async def test_merged_stream_ends_with_the_last_stream():
    streams = [Stream(), Stream()]
    put(streams[0], "a", None)
    put(streams[1], None)

    got = [burst async for burst in merge_streams([each.bursts() for each in streams])]

    assert got == [[(0, "a")]]


async def test_failure_comes_after_the_bursts_before_it():
    """A failing stream ends all streams."""
    streams = [Stream(), Stream()]
    put(streams[0], "a", ValueError("broken"))
    bursts = merge_streams([each.bursts() for each in streams])
    async with aclosing(bursts):
        first = await anext(bursts)
        with pytest.raises(ValueError, match="broken"):
            await anext(bursts)

    assert first == [(0, "a")]
    assert [each.closed for each in streams] == [True, True]


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_the_merged_stream_closes_every_stream(count):
    streams = [Stream() for _ in range(count)]
    bursts = merge_streams([each.bursts() for each in streams])
    for stream in streams:
        put(stream, "a")
    await anext(bursts)
    await settle()

    await bursts.aclose()

    assert [True] * count == [each.closed for each in streams]


async def test_cancelled_listener_closes_every_stream():
    streams = [Stream(), Stream()]

    async def listen() -> None:
        async with aclosing(merge_streams([each.bursts() for each in streams])) as bursts:
            async for _ in bursts:
                pass

    listener = asyncio.create_task(listen())
    await settle()

    listener.cancel()
    await asyncio.wait([listener])

    assert [each.closed for each in streams] == [True, True]
