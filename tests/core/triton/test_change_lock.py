"""The lock and the pause between a model's load and its removal."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from openai_frontend.triton import model_control
from openai_frontend.triton.model_control import SETTLE_S, CoreChangeLock


async def seconds_to_unload(lock):
    start = time.monotonic()
    async with lock.unloading():
        return time.monotonic() - start


async def load(lock, name="model", *, again=False, seconds=0.0):
    async with lock.loading(name, is_reload=lambda: again):
        await asyncio.sleep(seconds)


async def load_until(lock, over):
    async with lock.loading("early", is_reload=lambda: False):
        await over.wait()


async def test_unload_waits_after_a_load(monkeypatch):
    """For as long as a model needs to settle, and no longer."""
    lock, now_s, waits_s = CoreChangeLock(), 100.0, []

    async def wait(seconds):
        nonlocal now_s
        now_s += seconds
        waits_s.append(seconds)

    clock = SimpleNamespace(monotonic=lambda: now_s)  # does not run on while the machine is busy
    monkeypatch.setattr(model_control, "time", clock)
    await load(lock, "other")
    monkeypatch.setattr(asyncio, "sleep", wait)
    await seconds_to_unload(lock)

    assert waits_s == [pytest.approx(SETTLE_S)]
    assert lock.settle_delay_s() == 0


async def test_unload_without_recent_load():
    lock = CoreChangeLock()
    await load(lock)
    await asyncio.sleep(2 * SETTLE_S)

    assert lock.settle_delay_s() == 0


async def test_reload_waits_after_a_load():
    lock, start = CoreChangeLock(), time.monotonic()
    await load(lock)
    await load(lock, again=True)

    assert time.monotonic() - start > SETTLE_S * 0.9


async def test_concurrent_first_loads():
    """The second load finds the model loaded once it holds the lock, and waits like any reload."""
    lock = CoreChangeLock()
    loaded_at: list[float] = []

    async def first_load():
        async with lock.loading("model", is_reload=lambda: bool(loaded_at)):
            loaded_at.append(time.monotonic())

    await asyncio.gather(first_load(), first_load())

    assert loaded_at[1] - loaded_at[0] > SETTLE_S * 0.9


async def test_load_and_unload_do_not_overlap():
    lock = CoreChangeLock()
    order = []

    async def first():
        async with lock.loading("model", is_reload=lambda: False):
            await asyncio.sleep(0.05)
            order.append("loaded")

    async def second():
        await asyncio.sleep(0.01)
        async with lock.unloading():
            order.append("unloading")

    await asyncio.gather(first(), second())

    assert order == ["loaded", "unloading"]


async def test_unload_waits_for_all_loads():
    """An ensemble's load also loads its composing models, under its own name."""
    lock, start = CoreChangeLock(), time.monotonic()
    whole = asyncio.create_task(load(lock, "whole", seconds=0.1))
    await asyncio.sleep(0)
    await seconds_to_unload(lock)

    assert time.monotonic() - start > 0.1 + SETTLE_S * 0.9
    assert whole.done()


async def test_load_waits_for_a_pending_unload():
    lock = CoreChangeLock()
    order = []

    async def unload():
        async with lock.unloading():
            order.append("unload")

    async def late():
        async with lock.loading("late", is_reload=lambda: False):
            order.append("late")

    early = asyncio.create_task(load(lock, "early", seconds=0.05))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(unload())
    await asyncio.sleep(0.01)
    await asyncio.gather(early, unloading, late())

    assert order == ["unload", "late"]


async def test_cancelled_unload_blocks_nothing():
    lock, over = CoreChangeLock(), asyncio.Event()
    early = asyncio.create_task(load_until(lock, over))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(seconds_to_unload(lock), 0.01)
    over.set()

    async with asyncio.timeout(30):
        await load(lock, "late")
        await early


async def test_loads_run_in_parallel():
    lock, together = CoreChangeLock(), asyncio.Barrier(3)

    async def one(name):
        async with lock.loading(name, is_reload=lambda: False):
            return await together.wait()

    async with asyncio.timeout(30):
        places = await asyncio.gather(*map(one, "abc"))

    assert sorted(places) == [0, 1, 2]
