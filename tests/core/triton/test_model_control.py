"""Model changes whose caller leaves, or that the core's stop interrupts."""

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_frontend.triton.model_control import ModelControl
from openai_frontend.triton.stub_processes import StubProcesses
from openai_frontend.triton.unload_watch import UnloadWatch
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.engines.failing_engines import LoadsWhenTold
from tests.core.triton.waiting import until


class SlowCore:
    """A core whose changes start at once and end when the test allows."""

    def __init__(self):
        self.under_way = 0
        self.most = 0
        self.go_on = asyncio.Event()

    async def change(self, ask, changed):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go_on.wait()
        self.under_way -= 1

    @staticmethod
    def states(name):
        return ()

    @staticmethod
    async def refresh():
        """Nothing changes by itself."""

    @staticmethod
    async def watch(name):
        return UnloadWatch(StubProcesses(), (), (), list)


@pytest.mark.parametrize("first", ["load", "unload"])
async def test_cancelled_caller(first):
    """The change continues and keeps its lock until the core is done."""
    core = SlowCore()
    control = ModelControl(core.change, core.states, core.refresh, core.watch)
    works = {"load": lambda: control.load("model", None, {}), "unload": lambda: control.unload("m")}
    second = {"load": "unload", "unload": "load"}[first]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(works[first](), 0.05)
    after = asyncio.create_task(works[second]())
    await asyncio.sleep(0.1)
    core.go_on.set()
    async with asyncio.timeout(30):
        await after

    assert core.most == 1


async def test_stop_while_a_polled_model_loads(repository, start_server):
    """A stop during a poll interrupts the load and stops the core."""
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    mock_models.write(repository, "mock", config=failing_engines.config("WaitsInLoad"))
    await until(lambda: bool(multiprocessing.active_children()))
    async with asyncio.timeout(30):
        await server.stop()

    assert not server.outlives_stop


async def test_load_uses_no_thread_of_the_event_loop(repository, start_server):
    """Work on the event loop's own threads does not wait for loads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    LoadsWhenTold.begun.clear()
    LoadsWhenTold.may_end.clear()
    mock_models.write(repository, "mock", config=failing_engines.config("LoadsWhenTold"))
    server = await start_server(startup_models=[])
    loading = asyncio.create_task(server.load_model("mock"))
    try:
        await until(LoadsWhenTold.begun.is_set)
        async with asyncio.timeout(20):
            await asyncio.to_thread(int)
        assert not loading.done()
    finally:
        LoadsWhenTold.may_end.set()
    await loading
