"""The demo classifier through the API, on the real core: a request loads it."""

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.slow  # the model is a process

MODEL = "demo-classifier"
TEXTS = ["How can I kill a hanging process?", "You are such a moron.", "I will stab your brother."]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("demo-classifier")
    shutil.copytree(ROOT / "model_repository" / MODEL, folder / "models" / MODEL)
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(folder / "models", folder / "log", stubs) as process:
        process.wait_until_ready()
        yield process


def card(gateway: GatewayProcess) -> Any:
    return httpx.get(f"{gateway.url}/v1/models/{MODEL}", timeout=60).json()


def test_first_request_loads_it(gateway):
    """Its card tells before what it can do."""
    before = card(gateway)
    body = {"model": MODEL, "input": TEXTS}
    answer = httpx.post(f"{gateway.url}/v1/classify", json=body, timeout=600).json()
    after = card(gateway)

    assert [each["label"] for each in answer["data"]] == ["harmless", "insult", "violence"]
    assert (before["status"]["value"], after["status"]["value"]) == ("unloaded", "loaded")
    assert before["capabilities"] == after["capabilities"]
