import asyncio
import ctypes
import gc
import multiprocessing
import subprocess
import sys
import time

import pytest

from openai_frontend import errors
from openai_frontend.triton import _core, inprocess
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.engines.failing_engines import NeverEnds
from tests.core.triton import c_backends, python_models
from tests.core.triton.generation_inputs import collect, generate, generation
from tests.core.triton.waiting import until

# A program that uses a core and forgets to stop it; it must exit by itself nevertheless.
PROGRAM = """
import asyncio, sys
from pathlib import Path

from openai_frontend.triton import Options, Server
from tests.core.triton.generation_inputs import generate

async def start(server, streams):
    await server.start()
    running = [generate(server, 1000) for _ in range(streams)]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in running]
    if waiting:
        await asyncio.wait(waiting)
    return running

# An exit that waited for requests in flight would take as long as the core waits for them.
server = Server(Options(model_repositories=[Path(sys.argv[1])], exit_timeout_s=600))
loop = asyncio.new_event_loop()
running = loop.run_until_complete(start(server, int(sys.argv[2])))
"""
COROUTINES = failing_engines.config("NeverEnds")
UNTIL_CANCELLED = """
import pathlib, time

def work(is_cancelled):
    pathlib.Path(%r).touch()
    while not is_cancelled():
        time.sleep(0.01)
"""
CASES = {
    "the loop is closed": ("loop.close()", mock_models.CONFIG, 8),
    "the loop is closed on coroutines": ("loop.close()", COROUTINES, 8),
    "the loop is left open": ("", COROUTINES, 8),
    "the streams are dropped": ("loop.close(); del running", COROUTINES, 8),
    "the program is asked to exit": ("sys.exit(0)", mock_models.CONFIG, 8),
    "nothing is in flight": ("loop.close()", mock_models.CONFIG, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "config", "streams"), CASES.values(), ids=CASES)
def test_process_without_a_stop(repository, ending, config, streams):
    """A process whose server was never stopped exits cleanly, even with requests in flight."""
    slow = {"tokens_per_second": 50} if config == mock_models.CONFIG else {}
    mock_models.write(repository, "mock", config=config, **slow)
    command = [sys.executable, "-c", PROGRAM + ending, repository, str(streams)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    # asyncio warns about a coroutine that the closed loop left behind; there is no other output.
    complaints = [line for line in ended.stderr.splitlines() if not line.lower().startswith("task")]
    assert (ended.returncode, ended.stdout, complaints) == (0, "", [])


@pytest.mark.parametrize("engine", ["mock", "coroutine"])
async def test_stop_with_requests_in_flight(repository, start_server, engine):
    """A stop fails every stream as unavailable, without waiting for any, which would take 80 s."""
    NeverEnds.running = 0
    if engine == "mock":
        mock_models.write(repository, "mock", tokens_per_second=50)
    else:
        mock_models.write(repository, "mock", config=COROUTINES)
    server = await start_server()
    running = [asyncio.create_task(collect(generate(server, 4000))) for _ in range(16)]
    if engine == "mock":
        await until(lambda: inprocess.handle("mock")._engine.stats().running == 16)
    else:
        await until(lambda: NeverEnds.running == 16)
    async with asyncio.timeout(30):
        await server.stop()
        ended = await asyncio.gather(*running, return_exceptions=True)

    assert {(type(error), str(error)) for error in ended} == {
        (errors.ModelUnavailable, "the server is stopping")
    }


async def test_stop_returns_earlier_responses(repository, start_server):
    """Responses sent before the stop come before the error."""
    mock_models.write(repository, "mock", config=failing_engines.config("NeverEnds"))
    server = await start_server()
    stream = server.infer("mock", generation())
    await until(lambda: stream.received == 2)
    await server.stop()

    assert [response.item("text_output") for response in await anext(stream)] == [b"one", b"two"]
    with pytest.raises(errors.ModelUnavailable):
        await anext(stream)


async def test_stop_with_new_requests(repository, start_server):
    """Requests that have not reached their engine yet fail as unavailable too."""
    mock_models.write(repository, "mock", tokens_per_second=50)
    server = await start_server()
    streams = [generate(server, 4000) for _ in range(16)]
    async with asyncio.timeout(30):
        await server.stop()
        ended = await asyncio.gather(*map(collect, streams), return_exceptions=True)

    assert {type(error) for error in ended} == {errors.ModelUnavailable}


async def test_stream_after_the_stop(repository, start_server):
    """A stream that outlives its core can be cancelled and dropped."""
    mock_models.write(repository, "mock", tokens_per_second=50)
    server = await start_server()
    stream = generate(server, 4000)
    await server.stop()
    stream.cancel()

    with pytest.raises(errors.ModelUnavailable):
        await collect(stream)


async def test_stop_of_a_backend_that_ends_cancelled_requests_without_an_error(
    repository, start_server, tmp_path
):
    """Its consumer gets an error: the end must not look complete."""
    begun = tmp_path / "begun"
    python_models.write_decoupled(repository, "m", work=UNTIL_CANCELLED % str(begun))
    server = await start_server()
    stream = server.infer("m", {"IN": ("BYTES", (1,), b"\2\0\0\0hi")})
    await until(begun.exists)
    await server.stop()

    with pytest.raises(errors.ModelUnavailable, match="stopping"):
        await collect(stream)


async def test_stop_while_a_model_loads(repository, start_server):
    """A stop interrupts a load, and both end."""
    mock_models.write(repository, "mock", load_s=0.3)
    server = await start_server(startup_models=[])
    loading = asyncio.create_task(server.load_model("mock"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(30):
        await server.stop()
        ended = await asyncio.gather(loading, return_exceptions=True)

    assert ended[0] is None or isinstance(ended[0], errors.GatewayError)


async def test_stop_while_an_engine_waits_for_its_process(repository, start_server):
    """The stop interrupts the load, whatever time it has left."""
    mock_models.write(repository, "mock", config=failing_engines.config("WaitsInLoad"))
    server = await start_server(startup_models=[])
    loading = asyncio.create_task(server.load_model("mock"))
    await until(lambda: bool(multiprocessing.active_children()))
    async with asyncio.timeout(30):
        await server.stop()
        ended = await asyncio.gather(loading, return_exceptions=True)

    assert "its process has ended" in str(ended[0])


async def test_core_that_stops_without_its_loop(repository, start_server):
    """Unread responses are freed with a stopped core, even without a loop to drain it."""
    mock_models.write(repository, "mock", config=COROUTINES)
    server = await start_server()
    core, streams = server._core, [generate(server, 10) for _ in range(4)]
    await until(lambda: _core.live_counts()["responses"] == 8)
    asyncio.get_running_loop().remove_reader(core.response_fd)
    await asyncio.to_thread(server.stop_without_loop)
    del core, streams
    gc.collect()

    assert _core.live_counts()["responses"] == 0


async def test_core_that_does_not_stop_without_its_loop(repository, start_server, caplog):
    """At interpreter exit too this is logged, and no files are left."""
    mock_models.write(repository, "mock")
    server = await start_server(exit_timeout_s=0)
    core, folder = server._core, server._backends.folder
    mock_models.write(repository, "mock", fail_at_load="no weights")
    with pytest.raises(errors.GatewayError, match="no weights"):
        await server.load_model("mock")  # its record in the core delays the core's stop
    server._control.has_failed_reload = False
    inprocess._failed_reloads.clear()
    asyncio.get_running_loop().remove_reader(core.response_fd)
    await asyncio.to_thread(server.stop_without_loop)

    assert "Triton's core did not stop" in caplog.text
    assert not folder.exists()


async def test_core_outlives_the_threads_that_delete_models(repository, start_server):
    """Such a thread still uses the core after its model counts as unloaded."""
    backend = c_backends.write(repository, "lingering", "")
    server = await start_server(startup_models=[])
    await server.load_model("lingering")
    ended_threads = ctypes.c_int.in_dll(ctypes.CDLL(str(backend)), "ended_threads")
    await server.stop()

    assert ended_threads.value == 1


async def test_concurrent_stops(server):
    """They count as one."""
    async with asyncio.timeout(30):
        await asyncio.gather(server.stop(), server.stop())

    assert not server.is_live()


async def test_stop_does_not_wait_for_the_cores_next_check(repository, start_server):
    """The core checks once a second whether models are left; they are gone before its first check,
    also in the mode `none`. Of three stops the quickest counts, because a machine may be busy.
    """
    mock_models.write(repository, "mock")
    durations_s = []
    for _ in range(3):
        server = await start_server(model_control_mode="none")
        started_s = time.monotonic()
        await server.stop()
        durations_s.append(time.monotonic() - started_s)

    assert min(durations_s) < 0.9
