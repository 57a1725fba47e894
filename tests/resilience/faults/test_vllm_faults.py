"""vLLM's engine processes, suspended and killed with requests in flight. One gateway, because it
starts slowly.
"""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.gateway_process import ROOT, GatewayProcess
from tests.resilience.faults import held_models
from tests.resilience.faults.asking import (
    change,
    chat,
    client_of,
    error_of,
    events_of,
    load_all_again,
    none_runs,
    serves,
    slots,
    starts,
    unready,
    until,
)
from tests.resilience.faults.in_flight import Request, answers_of, asked, has_begun
from tests.resilience.faults.invariants import no_trace_left

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PATH = "/v1/chat/completions"
LONG = chat("demo", stream=True, ignore_eos=True, max_tokens=1900)
SHORT = chat("demo", max_tokens=4)
# An engine that has to wait for the processor is silent too, but not for as long as that.
OPTIONS = """
first_token_timeout_s: {first_token_s}
inter_token_timeout_s: 4
engine_max_restarts: {restarts}
"""
ENGINES = ("demo", "demo-embedding")
SLOTS_ARE_FREE_WITHIN_S = 15
# vLLM logs the death of a pooling model's engine with a traceback
LIMITS: dict[str, Any] = {
    "deadline_s": 30,
    "growth_bytes": 2**30,
    "may_log": ["Traceback (most recent call last)"],
}


def generated(route: str, **fields: Any) -> Request:
    fields = {"model": "demo", "ignore_eos": True, "max_tokens": 4, **fields}
    return Request(route, fields, {"max_tokens": 1900})


_CHAT = {"messages": [{"role": "user", "content": "hi"}]}
GENERATIONS = {
    "chat": generated(PATH, **_CHAT),
    "streamed chat": generated(PATH, **_CHAT, stream=True),
    "completion": generated("/v1/completions", prompt="hi"),
    "streamed completion": generated("/v1/completions", prompt="hi", stream=True),
}
EMBEDDINGS = {"embeddings": Request("/v1/embeddings", {"model": "demo-embedding", "input": "hi"})}
REQUESTS = GENERATIONS | EMBEDDINGS


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("engines")
    models = folder / "models"
    for name in ENGINES:
        shutil.copytree(ROOT / "model_repository" / name, models / name)
    _allow(models, restarts=9)
    held_models.write_mock(models, "other", {})  # turns the garbage collector off
    options = ["--model-control-mode=explicit", "--load-model=*", "--enable-model-management"]
    options += ["--engine-restart-window-s=1"]  # or each restart would wait longer
    with GatewayProcess(models, folder / "log", *options) as process:
        process.wait_until_ready()
        load_all_again(process, (*ENGINES, "other"))
        yield process


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    """After a request of each kind, which creates what the first one needs."""
    async with client_of(gateway) as made:
        assert await _answers(gateway) == dict.fromkeys(REQUESTS, (200, True))
        yield made


async def _answers(gateway: GatewayProcess) -> dict[str, tuple[int, bool]]:
    with asked(gateway, REQUESTS) as connections:
        return await answers_of(connections)


def _allow(models: Path, *, restarts: int) -> None:
    for name, first_token_s in zip(ENGINES, (600, 8), strict=True):
        options = OPTIONS.format(first_token_s=first_token_s, restarts=restarts)
        (models / name / "openai_frontend.yaml").write_text(options)


async def test_a_suspended_engine_recovers_and_a_killed_one_is_replaced(gateway, client):
    """A suspended engine process is detected and, once resumed, not restarted; a killed one is
    detected before its silence is, and replaced. Each stream ends with an error event.
    """
    models = gateway.log.parent / "models"
    async with no_trace_left(gateway, **LIMITS):
        # Without restarts: the gateway would give it 3 s, a busy machine may take them
        await _allowed(client, models, restarts=0)
        before = await starts(client, "demo")
        stalled = await _stream_of_suspended(gateway, client)
        recovered = await client.post(PATH, json=SHORT)
        assert (stalled, recovered.status_code) == ("engine_stalled", 200)
        assert await starts(client, "demo") == before

        await _allowed(client, models, restarts=9)
        lost, refused = await _stream_of_killed(gateway, client)
        replaced = await client.post(PATH, json=SHORT)
        assert (lost, refused.status_code, replaced.status_code) == ("model_unavailable", 503, 200)
        assert "engine process died" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert await starts(client, "demo") == before + 1


async def _allowed(client: httpx.AsyncClient, models: Path, *, restarts: int) -> None:
    """The options are read again after any change of the models."""
    _allow(models, restarts=restarts)
    assert await change(client, "other", "unload") == 200
    assert await change(client, "other", "load") == 200


async def _stream_of_suspended(gateway, client) -> str:
    """Suspend the engines during a stream, and resume them once the gateway knows. Returns the code
    of the stream's error when the model serves again.
    """
    async with events_of(client, PATH, LONG) as events:
        await anext(events)
        for engine in gateway.engine_processes():
            engine.suspend()
        last = [event async for event in events][-1]
    assert "has not responded" in (await unready(client))["demo"]
    for engine in gateway.engine_processes():
        engine.resume()
    await until(partial(serves, client, "demo"))
    return str(error_of(last)["code"])


async def _stream_of_killed(gateway, client) -> tuple[str, httpx.Response]:
    """Kill the engines during a stream. Returns the code of the stream's error, and the answer to a
    request before the replacement, when all models serve again.
    """
    async with events_of(client, PATH, LONG) as events:
        await anext(events)
        for engine in gateway.engine_processes():
            engine.kill()

        async def known() -> bool:
            return set(ENGINES) <= set(await unready(client))

        await until(known)
        assert "engine process died" in (await unready(client))["demo"]
        last = [event async for event in events][-1]
    refused = await client.post(PATH, json=SHORT)
    await _all_serve(client)
    return str(error_of(last)["code"]), refused


async def _all_serve(client):
    for name in ENGINES:
        await until(partial(serves, client, name), 600)


@pytest.mark.parametrize("unloads", [False, True], ids=["restarted", "unloaded"])
@pytest.mark.parametrize(
    "lose", [psutil.Process.kill, psutil.Process.suspend], ids=["killed", "suspended"]
)
async def test_requests_of_lost_engines_end(
    gateway, client, lose: Callable[[psutil.Process], None], unloads: bool
):
    """Each with an error, or an incomplete answer, and frees its slot, also if an unload follows
    at once; then the models serve again. No process is left.
    """

    async def all_generate() -> bool:
        streams = [each for name, each in begun.items() if "streamed" in name]
        return all(map(has_begun, streams)) and await slots(client) == len(GENERATIONS)

    async def all_run() -> bool:
        return await slots(client) == len(REQUESTS)

    async with no_trace_left(gateway, **LIMITS):
        lost = gateway.engine_processes()
        with asked(gateway, GENERATIONS, large=True) as begun:
            await until(all_generate)
            for each in lost:
                each.suspend()
            with asked(gateway, EMBEDDINGS) as waiting:
                await until(all_run)
                for each in lost:
                    lose(each)
                changes = asyncio.create_task(_change_all(client, "unload")) if unloads else None
                found = await answers_of({**begun, **waiting})
        assert not [name for name, answer in found.items() if answer == (200, True)]
        await until(partial(none_runs, client), SLOTS_ARE_FREE_WITHIN_S)
        if changes is not None:
            assert await changes == [200] * len(ENGINES)
            assert await _change_all(client, "load") == [200] * len(ENGINES)
        await _all_serve(client)
        assert await _answers(gateway) == dict.fromkeys(REQUESTS, (200, True))
        assert not [each for each in lost if each.is_running()]


async def _change_all(client: httpx.AsyncClient, verb: str) -> list[int]:
    return await asyncio.gather(*[change(client, each, verb) for each in ENGINES])


async def test_a_killed_gateway_leaves_no_process(gateway):
    """After SIGKILL, as from the kernel's out-of-memory killer."""
    children = psutil.Process(gateway.pid).children(recursive=True)
    assert set(gateway.engine_processes()) <= set(children)

    gateway.stop(signal.SIGKILL)

    _, left = psutil.wait_procs(children, timeout=30)
    for process in left:
        process.kill()
    assert left == []
