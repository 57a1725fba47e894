"""A gateway on the demo model, with vLLM, for the clients of this folder."""

from collections.abc import Iterator

import openai
import pytest

from tests.gateway_process import ROOT, GatewayProcess


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    with GatewayProcess(ROOT / "model_repository", log) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as made:
        yield made


@pytest.fixture
def async_client(gateway: GatewayProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60
    )
