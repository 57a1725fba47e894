"""The gateway with the default repository, and OpenAI's asynchronous client of the shared one."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from tests.gateway_process import ROOT, GatewayProcess


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=600
    ) as client:
        yield client


@pytest.fixture(scope="session")
def default_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """It has all demo models; `test_stop_with_engines.py` stops it."""
    log = tmp_path_factory.mktemp("default") / "log"
    with GatewayProcess(ROOT / "model_repository", log) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="session")
def default_client(default_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client of that gateway. The first request for images or speech loads the model."""
    url = f"{default_gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        yield client
