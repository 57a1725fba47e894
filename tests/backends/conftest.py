"""One gateway that serves a model of each contract, at OpenAI's own client."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.backends import repository
from tests.gateway_process import GatewayProcess


@pytest.fixture(scope="session")
def backends_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Every stand-in; that of vLLM only where a test of this run wants it, for it starts late."""
    folder = tmp_path_factory.mktemp("backends")
    models = repository.write_quick(folder / "models")
    if any(each.get_closest_marker("engine") for each in _here(request)):
        repository.write_vllm(models, "nvidia_vllm")
    with GatewayProcess(models, folder / "log") as process:
        process.wait_until_ready()
        yield process


def _here(request: pytest.FixtureRequest) -> list[pytest.Item]:
    folder = Path(__file__).parent
    return [each for each in request.session.items if folder in each.path.parents]


@pytest.fixture(scope="session")
def backends_url(backends_gateway: GatewayProcess) -> str:
    return f"{backends_gateway.url}/v1"


@pytest.fixture
def client(backends_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=backends_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made
