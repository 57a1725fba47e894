"""vLLM's engine process, suspended and killed while it streams. One gateway, because it starts
slowly.
"""

import shutil
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.gateway_process import ROOT, GatewayProcess
from tests.resilience.faults.asking import (
    chat,
    client_of,
    error_of,
    events_of,
    serves,
    starts,
    unready,
    until,
)
from tests.resilience.faults.invariants import no_trace_left

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PATH = "/v1/chat/completions"
LONG = chat("demo", stream=True, ignore_eos=True, max_tokens=1900)
SHORT = chat("demo", max_tokens=4)
OPTIONS = "inter_token_timeout_s: 2\nengine_max_restarts: 2\n"


def _repository(folder: Path) -> Path:
    shutil.copytree(ROOT / "model_repository" / "demo", folder / "demo")
    (folder / "demo" / "openai_frontend.yaml").write_text(OPTIONS)
    return folder


async def test_a_suspended_engine_recovers_and_a_killed_one_is_replaced(tmp_path):
    """A suspended engine process is detected and, once resumed, not restarted; a killed one is
    detected within 2 s and replaced. Each stream ends with an error event. A killed gateway leaves
    no process.
    """
    repository = _repository(tmp_path / "models")
    with GatewayProcess(repository, tmp_path / "log") as gateway:
        gateway.wait_until_ready()
        async with client_of(gateway) as client:
            assert (await client.post(PATH, json=SHORT)).status_code == 200
            async with no_trace_left(gateway, deadline_s=20, growth_bytes=1 << 30):
                await _stopped(gateway, client)
                await _killed(gateway, client)
        _leaves_no_process(gateway)


def _leaves_no_process(gateway):
    """After SIGKILL, as from the kernel's out-of-memory killer."""
    children = psutil.Process(gateway.pid).children(recursive=True)
    assert gateway.engine_processes()[0] in children

    gateway.stop(signal.SIGKILL)

    _, left = psutil.wait_procs(children, timeout=30)
    for process in left:
        process.kill()
    assert left == []


async def _stopped(gateway, client):
    [engine] = gateway.engine_processes()
    async with events_of(client, PATH, LONG) as events:
        await anext(events)
        engine.suspend()
        last = [event async for event in events][-1]
    reason = (await unready(client))["demo"]
    engine.resume()

    assert error_of(last)["code"] == "engine_stalled"
    assert "has not responded" in reason
    await until(partial(serves, client, "demo"))
    assert (await client.post(PATH, json=SHORT)).status_code == 200
    assert await starts(client, "demo") == 0


async def _killed(gateway, client):
    [engine] = gateway.engine_processes()
    async with events_of(client, PATH, LONG) as events:
        await anext(events)
        engine.kill()

        async def known() -> bool:
            return "engine process died" in (await unready(client)).get("demo", "")

        await until(known, 2)
        last = [event async for event in events][-1]
    refused = await client.post(PATH, json=SHORT)

    assert error_of(last)["code"] == "model_unavailable"
    assert (refused.status_code, bool(refused.headers["retry-after"])) == (503, True)
    assert "engine process died" in refused.json()["error"]["message"]
    await until(partial(serves, client, "demo"), 120)
    assert (await client.post(PATH, json=SHORT)).status_code == 200
    assert await starts(client, "demo") == 1
