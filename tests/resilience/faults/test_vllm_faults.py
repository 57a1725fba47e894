"""vLLM's engine process, suspended and killed while it streams. One gateway, because it starts
slowly.
"""

import shutil
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests import mock_models
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
# An engine that has to wait for the processor is silent too, but not for as long as that.
OPTIONS = "inter_token_timeout_s: 4\nengine_max_restarts: {restarts}\n"
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*", "--enable-model-management")


def _repository(folder: Path) -> Path:
    shutil.copytree(ROOT / "model_repository" / "demo", folder / "demo")
    _allow(folder, restarts=0)
    mock_models.write(folder, "other")
    return folder


def _allow(repository: Path, *, restarts: int) -> None:
    (repository / "demo" / "openai_frontend.yaml").write_text(OPTIONS.format(restarts=restarts))


async def test_a_suspended_engine_recovers_and_a_killed_one_is_replaced(tmp_path):
    """A suspended engine process is detected and, once resumed, not restarted; a killed one is
    detected before its silence is, and replaced. Each stream ends with an error event. A killed
    gateway leaves no process.
    """
    repository = _repository(tmp_path / "models")
    with GatewayProcess(repository, tmp_path / "log", *EXPLICIT) as gateway:
        gateway.wait_until_ready()
        async with client_of(gateway) as client:
            assert (await client.post(PATH, json=SHORT)).status_code == 200
            async with no_trace_left(gateway, deadline_s=60, growth_bytes=1 << 30):
                # Without restarts: the gateway would give it 3 s, a busy machine may take them
                await _stopped(gateway, client)
                _allow(repository, restarts=2)
                # The options are read again after any change of the models
                assert (await client.post("/v1/models/other/unload")).status_code == 200
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
            return "demo" in await unready(client)

        await until(known)
        assert "engine process died" in (await unready(client))["demo"]
        last = [event async for event in events][-1]
    refused = await client.post(PATH, json=SHORT)

    assert error_of(last)["code"] == "model_unavailable"
    assert (refused.status_code, bool(refused.headers["retry-after"])) == (503, True)
    assert "engine process died" in refused.json()["error"]["message"]
    await until(partial(serves, client, "demo"), 600)
    assert (await client.post(PATH, json=SHORT)).status_code == 200
    assert await starts(client, "demo") == 1
