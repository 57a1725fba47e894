"""Unloads, loads and a shutdown whose models have lost their stub with requests in flight, which
Triton never ends.
"""

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.core.triton import python_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import client_of, error_of, events_of, serves, unready, until
from tests.resilience.faults.test_stub_faults import (
    MODEL,
    STREAM,
    _write,
    aborted_by_the_backend,
    known_abort,
    stub,
)

pytestmark = pytest.mark.slow

STREAMING = "def wait_for_gate():\n    pass\n" + MODEL
# The second step of the ensemble answers after the test
NEVER = "import time\n\ndef answer(given):\n    time.sleep(600)\n    return given\n"
THREADS_OF_A_LOST_STUB = 40  # docs/engine-health.md
ENDS_WITHIN_S = 60  # 10 s and what a busy machine adds; without the fix, never

Case = Callable[[GatewayProcess, httpx.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("lost")
    models = folder / "models"
    for name in ("at_once", "meanwhile", "unrestartable", "stopped", "reloaded", "last"):
        _write(models / name, STREAMING)
    python_models.write(models, "first")
    python_models.write(models, "second", answer=NEVER)
    python_models.write_ensemble(models)
    options = ["--model-control-mode=explicit", "--load-model=*", "--enable-model-management"]
    with GatewayProcess(models, folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


async def unload(client: httpx.AsyncClient, model: str) -> None:
    async with asyncio.timeout(ENDS_WITHIN_S):
        answer = await client.post(f"/v1/models/{model}/unload")
    assert answer.status_code == 200, answer.text


async def load(client: httpx.AsyncClient, model: str) -> None:
    answer = await client.post(f"/v1/models/{model}/load")
    assert answer.status_code == 200, answer.text
    await until(partial(serves, client, model))


def write(gateway: GatewayProcess, model: str, source: str) -> None:
    Path(gateway.log.parent, "models", model, "1", "model.py").write_text(source)


async def at_once(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """The stub dies, and the unload follows before the gateway knows."""
    async with events_of(client, STREAM.format("at_once"), {"IN": "go"}) as events:
        await anext(events)
        stub(gateway, "at_once").kill()
        unloading = asyncio.create_task(unload(client, "at_once"))
        assert error_of([event async for event in events][-1])
        await unloading
    await load(client, "at_once")
    async with events_of(client, STREAM.format("at_once"), {"IN": "go"}) as events:
        assert "word" in await anext(events)
    await unload(client, "at_once")
    await load(client, "at_once")


async def meanwhile(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """The stub dies while the unload waits for the request."""
    async with events_of(client, STREAM.format("meanwhile"), {"IN": "go"}) as events:
        await anext(events)
        unloading = asyncio.create_task(unload(client, "meanwhile"))
        await until(partial(is_unloading, client, "meanwhile"))
        stub(gateway, "meanwhile").kill()
        assert error_of([event async for event in events][-1])
        await unloading
    await load(client, "meanwhile")


async def stopped(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """The stub stands still while the unload waits for the request."""
    async with events_of(client, STREAM.format("stopped"), {"IN": "go"}) as events:
        await anext(events)
        unloading = asyncio.create_task(unload(client, "stopped"))
        await until(partial(is_unloading, client, "stopped"))
        stub(gateway, "stopped").send_signal(signal.SIGSTOP)
        assert error_of([event async for event in events][-1])
        await unloading
    await load(client, "stopped")


async def unrestartable(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """Restarts fail, and the model stays down."""
    async with events_of(client, STREAM.format("unrestartable"), {"IN": "go"}) as events:
        await anext(events)
        write(gateway, "unrestartable", "raise RuntimeError('broken')")
        stub(gateway, "unrestartable").kill()
        assert error_of([event async for event in events][-1])

    async def has_failed() -> bool:
        return "broken" in (await unready(client)).get("unrestartable", "")

    await until(has_failed)
    await unload(client, "unrestartable")
    write(gateway, "unrestartable", STREAMING)
    await load(client, "unrestartable")


async def reloaded(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """A load replaces the dead stub, and an unload follows."""
    async with events_of(client, STREAM.format("reloaded"), {"IN": "go"}) as events:
        await anext(events)
        write(gateway, "reloaded", "# changed\n" + STREAMING)
        stub(gateway, "reloaded").kill()
        await load(client, "reloaded")
        assert error_of([event async for event in events][-1])
    await unload(client, "reloaded")
    await load(client, "reloaded")


async def ensemble(gateway: GatewayProcess, client: httpx.AsyncClient) -> None:
    """A part of the ensemble dies; its other part is unharmed."""
    body = {"QUESTION": "hi"}
    asking = asyncio.create_task(client.post("/v2/models/ensemble/generate", json=body))
    healthy = stub(gateway, "first")
    await until(partial(reaches_its_second_step, client))
    stub(gateway, "second").kill()
    await unload(client, "ensemble")
    assert (await asking).status_code == 503
    assert not healthy.is_running()  # unloaded with the ensemble
    python_model = Path(gateway.log.parent, "models", "second")
    shutil.rmtree(python_model)
    python_models.write(python_model.parent, "second")
    await load(client, "ensemble")
    answer = await client.post("/v2/models/ensemble/generate", json=body)
    assert (answer.status_code, answer.json()["REPLY"]) == (200, "hi")


async def is_unloading(client: httpx.AsyncClient, model: str) -> bool:
    index = (await client.post("/v2/repository/index")).json()
    return any(each["name"] == model and each.get("state") == "UNLOADING" for each in index)


async def reaches_its_second_step(client: httpx.AsyncClient) -> bool:
    return (
        'nv_inference_exec_count{model="first",version="1"} 1'
        in (await client.get("/metrics")).text
    )


CASES: list[Case] = [at_once, meanwhile, stopped, unrestartable, reloaded, ensemble]


async def no_zombie_is_left(process: psutil.Process) -> bool:
    return all(child.status() != psutil.STATUS_ZOMBIE for child in process.children())


async def test_every_unload_ends(gateway):
    """The name is free again: the model loads, serves, and is unloaded as before. The requests in
    flight end with an error. What is left of a lost stub is bounded, and no zombie.
    """
    process = psutil.Process(gateway.pid)
    threads = process.num_threads()
    with known_abort(gateway):
        async with client_of(gateway) as client:
            await asyncio.gather(*(case(gateway, client) for case in CASES))
        await until(partial(no_zombie_is_left, process), 120)
        assert process.num_threads() - threads <= THREADS_OF_A_LOST_STUB * len(CASES)


async def test_shutdown_is_orderly(gateway):
    """Also if a stub has just died with a request in flight, after all of the above."""
    with known_abort(gateway):
        async with (
            client_of(gateway) as client,
            events_of(client, STREAM.format("last"), {"IN": "go"}) as events,
        ):
            await anext(events)
            stub(gateway, "last").kill()
            began_s = time.monotonic()
            code = await asyncio.to_thread(gateway.stop)
    assert aborted_by_the_backend(gateway) or code == 0
    assert "did not stop" not in gateway.output()
    assert time.monotonic() - began_s < 30  # the core's own exit timeout
