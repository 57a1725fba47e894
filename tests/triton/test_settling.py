"""The pause between a model's load and whatever takes it away."""

import asyncio
import time

from openai_frontend.triton.settling import SETTLING_S, Settling


async def seconds_to_unload(settling, name="model"):
    start = time.monotonic()
    async with settling.unloading(name):
        return time.monotonic() - start


async def load(settling, name="model", *, again=False, seconds=0.0):
    async with settling.loading(name, again=again):
        await asyncio.sleep(seconds)


async def test_an_unload_waits_where_a_load_has_just_ended():
    settling = Settling(lambda name: False)
    await load(settling, "other")

    assert SETTLING_S * 0.9 < await seconds_to_unload(settling) < 1


async def test_an_unload_does_not_wait_where_nothing_is_new():
    settling = Settling(lambda name: False)
    await load(settling)
    await asyncio.sleep(2 * SETTLING_S)

    assert settling.rest_s() == 0


async def test_a_load_of_what_is_loaded_waits_too():
    settling = Settling(lambda name: False)
    await load(settling)
    start = time.monotonic()
    await load(settling, again=True)

    assert time.monotonic() - start > SETTLING_S * 0.9


async def test_changes_of_one_model_do_not_overlap():
    settling = Settling(lambda name: False)
    order = []

    async def first():
        async with settling.loading("model", again=False):
            await asyncio.sleep(0.05)
            order.append("loaded")

    async def second():
        await asyncio.sleep(0.01)
        async with settling.unloading("model"):
            order.append("unloading")

    await asyncio.gather(first(), second())

    assert order == ["loaded", "unloading"]


async def test_a_part_that_another_load_brings_is_left_until_it_has_come():
    """The load of an ensemble loads its parts, under its own name."""
    loading = {"part"}
    settling = Settling(loading.__contains__)
    asyncio.get_running_loop().call_later(0.05, loading.clear)
    whole = asyncio.create_task(load(settling, "whole", seconds=0.2))
    await asyncio.sleep(0)

    assert 0.05 + SETTLING_S * 0.9 < await seconds_to_unload(settling, "part") < 0.2
    await whole
