"""One gateway that serves a model of each contract, with OpenAI's client."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.api.backends import models, repository
from tests.api.lora.trained import ANSWERS
from tests.gateway_process import GatewayProcess

REAL_MODELS_S = 1800  # engines of many GPUs load slowly


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `model` parameter runs with each of them."""
    if "model" in metafunc.fixturenames and metafunc.module.__name__.endswith("test_api"):
        metafunc.parametrize("model", models.params())


@pytest.fixture(scope="session")
def standins_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Every stand-in; the slow vLLM only if a test of this run needs it."""
    folder = tmp_path_factory.mktemp("backends")
    written = repository.write_quick(folder / "models")
    if any(each.get_closest_marker("engine") for each in _here(request)):
        from tests.vllm import tiny_adapter  # needs torch, as vLLM does

        tiny_adapter.write(folder / "pirate", ANSWERS["pirate"], base=repository.WEIGHTS)
        repository.write_vllm(written, "nvidia_vllm", adapters={"pirate": folder / "pirate"})
    backends = repository.write_vllm_backend(folder / "backends")
    # Triton ends a stub that has not started after 30 s, which a busy machine may need for vLLM.
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    options = [f"--backend-directory={backends}", stubs]
    with GatewayProcess(written, folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="session")
def real_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The repository named in the environment."""
    named = models.repository()
    if named is None:
        pytest.skip(f"{models.VARIABLE} names no model repository")
    with GatewayProcess(named, tmp_path_factory.mktemp("gpu") / "log") as process:
        process.wait_until_ready(REAL_MODELS_S)
        yield process


def _here(request: pytest.FixtureRequest) -> list[pytest.Item]:
    folder = Path(__file__).parent
    return [each for each in request.session.items if folder in each.path.parents]


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> GatewayProcess:
    """The gateway that serves the test's model."""
    real = request.node.get_closest_marker("gpu") is not None
    serving: GatewayProcess = request.getfixturevalue(
        "real_gateway" if real else "standins_gateway"
    )
    return serving


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def first_token(gateway: GatewayProcess) -> "FirstToken":
    return FirstToken(gateway.url)


class FirstToken:
    """Requests the first token of a text from the gateway."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, model: str, text: str) -> int:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        told = httpx.post(f"{self._url}/tokenize", json=body).raise_for_status().json()
        token: int = told["tokens"][0]
        return token
