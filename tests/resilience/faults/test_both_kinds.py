"""vLLM in the gateway's process beside Python models: each starts again in the environment of the
first start, although vLLM and its imports change the process.
"""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend.engines.vllm.processes import environment
from tests import mock_models
from tests.core.triton import python_models
from tests.gateway_process import ROOT, GatewayProcess
from tests.resilience.faults import environment_engine
from tests.resilience.faults.asking import chat, client_of, serves, starts, until
from tests.resilience.faults.test_stub_faults import known_abort, stub

pytestmark = [pytest.mark.slow, pytest.mark.engine]

FACTS = """
import json, os

def answer(given):
    facts = {"pid": os.getpid(), "environment": dict(os.environ)}
    return numpy.array([json.dumps(facts)], dtype=object)
"""
OPTIONS = (
    "--model-control-mode=explicit",
    "--load-on-demand",
    "--load-model=early",
    "--enable-model-management",
    "--exit-timeout-s=1",
    "--queue-timeout-s=120",  # a load with vLLM's import takes long on a busy machine
)
# Set before the core starts
BY_THE_GATEWAY = {
    "TOKENIZERS_PARALLELISM",  # its thread pool bounds tokenization
    "FASTOKENS_BPE_THREADS",  # the same
    "GRPC_VERBOSITY",  # its lines are not in the log's format
    "GRPC_ENABLE_FORK_SUPPORT",  # else the Python backend's forks could abort the process
    "_OPENAI_FRONTEND_LOAD_PHASES",  # where engines' processes report them
    "_OPENAI_FRONTEND_ENGINE_LOG_CONFIG",  # logs of engines' processes
    "_OPENAI_FRONTEND_ENGINE_LOG_FORMAT",
    "_OPENAI_FRONTEND_ENGINE_LOG_EXCEPTION_TEXTS",
}


def _repository(folder: Path) -> Path:
    shutil.copytree(ROOT / "model_repository" / "demo", folder / "demo")
    for name in ("early", "late"):
        python_models.write(folder, name, answer=FACTS)
    mock_models.write(folder, "environment", config=environment_engine.CONFIG)
    return folder


async def test_both_kinds_restart_reload_and_load_on_demand(tmp_path):
    """A Python model's stub has the same environment each time, before and after the import of
    vLLM. The gateway's own environment changes only by the listed variables.
    """
    repository = _repository(tmp_path / "models")
    with GatewayProcess(repository, tmp_path / "log", *OPTIONS) as gateway:
        gateway.wait_until_ready()
        async with client_of(gateway) as client:
            with known_abort(gateway):
                first = await _facts(client, "early")
                await _chats(client)  # imports vLLM
                assert (await _facts(client, "late"))["environment"] == first["environment"]
                await _restarted(gateway, client, first)
                await _reloaded(repository, client)
            changed = await _changed(client, gateway.environment)
    assert {name for name in changed - BY_THE_GATEWAY if not environment.is_kept(name)} == set()


async def _facts(client: httpx.AsyncClient, model: str) -> dict[str, Any]:
    answer = await client.post(f"/v2/models/{model}/generate", json={"IN": "?"})
    assert answer.status_code == 200, answer.text
    facts: dict[str, Any] = json.loads(answer.json()["OUT"])
    return facts


async def _chats(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat("demo", max_tokens=4))
    assert answer.status_code == 200, answer.text


async def _restarted(
    gateway: GatewayProcess, client: httpx.AsyncClient, first: dict[str, Any]
) -> None:
    stub(gateway, "early").kill()
    [engine] = gateway.engine_processes()
    engine.kill()
    for model in ("early", "demo"):
        await until(partial(_has_restarted, client, model))
    again = await _facts(client, "early")
    await _chats(client)

    assert again["pid"] != first["pid"]
    assert again["environment"] == first["environment"]


async def _has_restarted(client: httpx.AsyncClient, model: str) -> bool:
    return await starts(client, model) >= 1 and await serves(client, model)


async def _reloaded(repository: Path, client: httpx.AsyncClient) -> None:
    was = await _facts(client, "early")
    for model in ("early", "demo"):
        config = repository / model / "config.pbtxt"
        config.write_text(config.read_text() + "# changed\n")
        loaded = await client.post(f"/v1/models/{model}/load")
        assert loaded.status_code == 200, loaded.text
    again = await _facts(client, "early")
    await _chats(client)

    assert again["pid"] != was["pid"]
    assert again["environment"] == was["environment"]


async def _changed(client: httpx.AsyncClient, before: Mapping[str, str]) -> set[str]:
    """The names of the gateway's variables that are not as `before`."""
    loaded = await client.post("/v1/models/environment/load")
    now: dict[str, str] = json.loads(loaded.json()["description"])
    return {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
