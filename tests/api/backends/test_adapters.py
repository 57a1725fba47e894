"""Adapters of TensorRT-LLM's pipelines: sent once, and again after the engine evicted them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import load_file

from tests.api.backends import repository
from tests.api.backends.standins.adapters import MODULES
from tests.api.lora.trained import ANSWERS, BASE, QUESTION, connected, say
from tests.gateway_process import GatewayProcess

# torch trains the adapters
pytestmark = [pytest.mark.engine, pytest.mark.slow]
on_one_loop = pytest.mark.asyncio(loop_scope="module")

PIPELINES = ["ensemble", "tensorrt_llm_bls"]


def write_tensorrt_llm(peft: Path, folder: Path) -> None:
    """The output of TensorRT-LLM's converter for an adapter: A and B of a layer in one row, with
    the scale in B.
    """
    from tests.vllm import tiny_adapter

    layers: dict[tuple[int, int], list[numpy.ndarray]] = {}
    numbers = {name: number for number, name in MODULES.items()}
    for name, tensor in sorted(load_file(peft / "adapter_model.safetensors").items()):
        _, _, _, _, layer, *module, part, _ = name.split(".")
        scale = tiny_adapter.ALPHA / tiny_adapter.RANK if part == "lora_B" else 1
        key = int(layer), numbers[".".join(module)]
        layers.setdefault(key, []).append((tensor * scale).ravel())
    rows = [numpy.concatenate(parts) for parts in layers.values()]
    weights = numpy.zeros((1, len(rows), max(map(len, rows))), dtype="float16")
    for place, row in enumerate(rows):
        weights[0, place, : len(row)] = row
    config = [[module, layer, tiny_adapter.RANK] for layer, module in layers]
    folder.mkdir(parents=True)
    numpy.save(folder / "model.lora_weights.npy", weights)
    numpy.save(folder / "model.lora_config.npy", numpy.array([config], dtype="int32"))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Both pipelines on one engine, whose cache has room for two adapters."""
    from tests.vllm import tiny_adapter

    folder = tmp_path_factory.mktemp("adapters")
    for name, answer in ANSWERS.items():
        tiny_adapter.write(folder / "peft" / name, answer, base=repository.WEIGHTS)
        write_tensorrt_llm(folder / "peft" / name, folder / "adapters" / name)
    models = folder / "models"
    repository.write_tensorrt_llm(models)
    options = [
        f"--model-option={model}:adapter_folder={folder / 'adapters'}" for model in PIPELINES
    ]
    with GatewayProcess(models, folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connected(gateway) as made:
        yield made


@on_one_loop
@pytest.mark.parametrize("model", PIPELINES)
@pytest.mark.parametrize("stream", [False, True])
async def test_more_adapters_than_the_engine_caches(
    client: openai.AsyncOpenAI, model: str, stream: bool
):
    """Each gives its own answers in every round, whichever was evicted before it; so does the
    base model.
    """
    for _ in range(2):
        for name, answer in ANSWERS.items():
            assert await say(client, f"{model}:{name}", stream=stream) == answer
    assert (await say(client, model, stream=stream)).startswith(BASE)


@on_one_loop
@pytest.mark.parametrize("model", PIPELINES)
async def test_concurrent_requests_to_all_adapters(client: openai.AsyncOpenAI, model: str):
    """They evict each other during the requests, and none fails."""
    names = list(ANSWERS) * 3
    said = await asyncio.gather(*(say(client, f"{model}:{name}") for name in names))

    assert said == [ANSWERS[name] for name in names]


def test_evictions_do_not_reach_clients(gateway: GatewayProcess):
    """The engine rejected requests for missing weights, as its own count of responses shows, and
    no client got an error.
    """
    text = httpx.get(f"{gateway.url}/metrics").text
    families = {each.name: each.samples for each in text_string_to_metric_families(text)}
    refused = [
        each.value
        for each in families["openai_frontend_generations"]
        if each.labels.get("finish_reason") == "error" and each.labels["adapter"]
    ]
    statuses = {
        each.labels["status"] for each in families["openai_frontend_requests"] if each.value
    }

    assert sum(refused) > 0
    assert not {status for status in statuses if status.startswith("5")} - {"503"}


def test_nvidias_vllm_backend_selects_adapters_by_name(standins_gateway: GatewayProcess):
    """It reads multi_lora.json itself; the gateway lists its adapters and sends it the name."""
    url = f"{standins_gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = client.models.retrieve("nvidia_vllm:pirate").to_dict()
        asked: dict[str, Any] = {
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
        }
        said = [
            client.chat.completions.create(model=name, **asked).choices[0].message.content
            for name in ("nvidia_vllm:pirate", "nvidia_vllm")
        ]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nvidia_vllm:nobody", **asked)

    assert (model["parent"], model["ready"]) == ("nvidia_vllm", True)
    assert said[0] == ANSWERS["pirate"]
    assert said[1].startswith(BASE)
