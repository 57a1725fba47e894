"""The pause between a model's load and whatever takes it away."""

import asyncio
import time

import pytest

from openai_frontend.triton.settling import SETTLING_S, Settling


async def seconds_to_unload(settling):
    start = time.monotonic()
    async with settling.unloading():
        return time.monotonic() - start


async def load(settling, name="model", *, again=False, seconds=0.0):
    async with settling.loading(name, again=lambda: again):
        await asyncio.sleep(seconds)


async def test_an_unload_waits_where_a_load_has_just_ended():
    settling, start = Settling(), time.monotonic()
    await load(settling, "other")
    await seconds_to_unload(settling)

    assert SETTLING_S * 0.9 < time.monotonic() - start < 1


async def test_an_unload_does_not_wait_where_nothing_is_new():
    settling = Settling()
    await load(settling)
    await asyncio.sleep(2 * SETTLING_S)

    assert settling.rest_s() == 0


async def test_a_load_of_what_is_loaded_waits_too():
    settling, start = Settling(), time.monotonic()
    await load(settling)
    await load(settling, again=True)

    assert time.monotonic() - start > SETTLING_S * 0.9


async def test_two_first_loads_of_a_model():
    """The second one finds the model loaded when its turn has come, and waits as for any other."""
    settling = Settling()
    loaded_at: list[float] = []

    async def first_load():
        async with settling.loading("model", again=lambda: bool(loaded_at)):
            loaded_at.append(time.monotonic())

    await asyncio.gather(first_load(), first_load())

    assert loaded_at[1] - loaded_at[0] > SETTLING_S * 0.9


async def test_changes_of_one_model_do_not_overlap():
    settling = Settling()
    order = []

    async def first():
        async with settling.loading("model", again=lambda: False):
            await asyncio.sleep(0.05)
            order.append("loaded")

    async def second():
        await asyncio.sleep(0.01)
        async with settling.unloading():
            order.append("unloading")

    await asyncio.gather(first(), second())

    assert order == ["loaded", "unloading"]


async def test_an_unload_waits_for_all_loads():
    """The load of an ensemble loads its parts, under its own name."""
    settling = Settling()
    whole = asyncio.create_task(load(settling, "whole", seconds=0.1))
    await asyncio.sleep(0)

    assert await seconds_to_unload(settling) > 0.1 + SETTLING_S * 0.9
    assert whole.done()


async def test_a_load_comes_after_the_unload_that_waits():
    settling = Settling()
    order = []

    async def unload():
        async with settling.unloading():
            order.append("unload")

    async def late():
        async with settling.loading("late", again=lambda: False):
            order.append("late")

    early = asyncio.create_task(load(settling, "early", seconds=0.05))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(unload())
    await asyncio.sleep(0.01)
    await asyncio.gather(early, unloading, late())

    assert order == ["unload", "late"]


async def test_an_unload_that_nobody_waits_for_any_more_holds_nothing_up():
    settling = Settling()
    early = asyncio.create_task(load(settling, "early", seconds=0.05))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(seconds_to_unload(settling), 0.01)

    async with asyncio.timeout(5):
        await load(settling, "late")
        await early


async def test_loads_run_together():
    settling, together = Settling(), asyncio.Barrier(3)

    async def one(name):
        async with settling.loading(name, again=lambda: False):
            return await together.wait()

    async with asyncio.timeout(5):
        places = await asyncio.gather(*map(one, "abc"))

    assert sorted(places) == [0, 1, 2]
