"""LoRA adapters in vLLM: OpenAI's SDK over real sockets, in the step loop and through AsyncLLM."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from openai.types import Completion
from prometheus_client.parser import text_string_to_metric_families

from openai_frontend.engines.vllm.stats import lora_adapter_name
from tests.api.lora.trained import ANSWERS, BASE, QUESTION, connected, say
from tests.gateway_process import ROOT, GatewayProcess
from tests.vllm.conftest import needs_statistics

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
]

MODELS = ["demo", "demo-async-llm"]
both = pytest.mark.parametrize("model", MODELS)

PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
PIRATE, ROBOT, POET = ANSWERS.values()
IN_PROGRESS = "openai_frontend_requests_running"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The watched folder. Neither a step nor memory has room for more than one adapter."""
    from tests.vllm import tiny_adapter

    folder = tmp_path_factory.mktemp("adapters")
    weights = ROOT / "model_repository" / "demo" / "1" / "weights"
    for name, answer in ANSWERS.items():
        tiny_adapter.write(folder / name, answer, base=weights)
    return folder


@pytest.fixture(scope="module")
def gateway(adapters: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The demo model in the step loop and through AsyncLLM."""
    folder = tmp_path_factory.mktemp("gateway")
    for name, step_loop in zip(MODELS, ("true", "false"), strict=True):
        copy = folder / "models" / name
        shutil.copytree(ROOT / "model_repository" / "demo", copy)
        config = copy / "config.pbtxt"
        added = f'parameters {{ key: "step_loop" value: {{ string_value: "{step_loop}" }} }}\n'
        config.write_text(config.read_text() + added)
        arguments = copy / "1" / "model.json"
        lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 1}
        changed = json.loads(arguments.read_text()) | lora
        if name == "demo":
            changed["kv_events_config"] = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"ipc://{folder}/kv-events",
            }
        arguments.write_text(json.dumps(changed))
    options = (f"--model-option=*:adapter_folder={adapters}", "--lora-poll-interval-s=3600")
    with GatewayProcess(
        folder / "models", folder / "log", "--enable-model-management", *options
    ) as process:
        process.wait_until_ready()
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connected(gateway) as made:
        yield made


def post(gateway: GatewayProcess, path: str, **fields: str) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/{path}", json=fields, timeout=60)


async def is_reported(
    gateway: GatewayProcess, request: asyncio.Task[str], metric: str, **labels: str
) -> bool:
    """Wait until a sample with these labels is above zero. False if the request has ended before:
    those that it waits for end after seconds, for which a busy machine may stop a process.
    """
    async with httpx.AsyncClient(base_url=gateway.url) as client, asyncio.timeout(120):
        reported = 0.0
        while not reported and not request.done():
            text = (await client.get("/metrics")).text
            families = {each.name: each for each in text_string_to_metric_families(text)}
            samples = families[metric].samples
            reported = sum(each.value for each in samples if labels.items() <= each.labels.items())
    return reported > 0


@both
async def test_base_and_adapters_at_once(client: openai.AsyncOpenAI, model: str):
    """Each model gives its own answer to the same prompt, whatever shares a step or a cache with
    it; the adapters exceed the engine's batch and memory.
    """
    names = [model, *(f"{model}:{name}" for name in ANSWERS)]
    expected = [BASE, *ANSWERS.values()]
    for stream in (False, True):
        said = await asyncio.gather(*(say(client, name, stream=stream) for name in names * 3))
        assert [text[: len(BASE)] for text in said] == expected * 3


@both
async def test_prompt_logprobs_of_base_and_adapters(client: openai.AsyncOpenAI, model: str):
    """Each model finds its own answer likely when it reads it, alone and beside the others."""
    names = [model, *(f"{model}:{name}" for name in ANSWERS)]
    said = [BASE, *ANSWERS.values()]

    read = [await likelihood(client, *each) for each in zip(names, said, strict=True)]
    together = await asyncio.gather(
        *(likelihood(client, *each) for each in zip(names, said, strict=True))
    )
    exchanged = await likelihood(client, names[0], said[1])

    assert min(read) > -1
    assert together == pytest.approx(read, abs=1e-3)
    assert exchanged < -1


async def likelihood(client: openai.AsyncOpenAI, model: str, answer: str) -> float:
    """The mean log probability of an answer's tokens as a part of the prompt."""
    question = await client.completions.create(**_read(model, PROMPT))
    complete = await client.completions.create(**_read(model, PROMPT + answer))
    assert question.usage is not None
    positions = complete.choices[0].to_dict()["prompt_logprobs"][question.usage.prompt_tokens :]
    logprobs: list[float] = [next(iter(each.values()))["logprob"] for each in positions]
    return sum(logprobs) / len(logprobs)


def _read(model: str, prompt: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "extra_body": {"prompt_logprobs": 0},
    }


async def test_adapters_are_listed_with_their_parent(client: openai.AsyncOpenAI):
    """Their ids are the names that requests use."""
    models = {model.id: model.to_dict() async for model in client.models.list()}

    for base in MODELS:
        for name in ANSWERS:
            assert models[f"{base}:{name}"]["parent"] == base


@both
async def test_unknown_adapter_is_not_found(client: openai.AsyncOpenAI, model: str):
    """The base model does not answer instead."""
    with pytest.raises(openai.NotFoundError) as refused:
        await say(client, f"{model}:nobody")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


@both
async def test_adapters_load_and_unload(
    gateway: GatewayProcess, client: openai.AsyncOpenAI, adapters: Path, model: str
):
    """A copied adapter is loaded by its name, unloaded, and loaded with other content."""
    folder = adapters / "newcomer"
    shutil.copytree(adapters / "pirate", folder)
    loaded = post(gateway, "load_lora_adapter", lora_name="newcomer", model=model)
    first = await say(client, f"{model}:newcomer")
    unloaded = post(gateway, "unload_lora_adapter", lora_name="newcomer", model=model)
    with pytest.raises(openai.NotFoundError):
        await say(client, f"{model}:newcomer")
    shutil.rmtree(folder)
    shutil.copytree(adapters / "robot", folder)
    post(gateway, "load_lora_adapter", lora_name="newcomer", model=model)
    second = await say(client, f"{model}:newcomer")
    shutil.rmtree(folder)

    assert [loaded.status_code, unloaded.status_code] == [200, 200]
    assert (first, second) == (PIRATE, ROBOT)


async def hold(client: openai.AsyncOpenAI, model: str) -> openai.AsyncStream[Completion]:
    """A long answer that has begun."""
    holding = await client.completions.create(
        model=model,
        prompt="Hello",
        max_tokens=2000,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    await anext(holding)
    return holding


async def test_kv_events_describe_the_prefix_cache(
    gateway: GatewayProcess, client: openai.AsyncOpenAI
):
    """Routers follow them to know which server has which prefix, with adapters apart."""
    prompts = [list(range(first, first + 64)) for first in range(10, 50)]  # two blocks each
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as events:
        events.subscribe("")
        events.connect(f"ipc://{gateway.log.parent}/kv-events")
        received = asyncio.ensure_future(events.recv_multipart())
        for prompt in prompts:  # nothing says when the subscription has begun
            await client.completions.create(model="demo:robot", prompt=prompt, max_tokens=1)
            if (await asyncio.wait([received], timeout=0.5))[0]:
                break
        _, _, payload = await received

    _, batch, *_ = msgspec.msgpack.decode(payload)
    stored = batch[0]
    assert (stored["type"], stored["token_ids"] in prompts) == ("BlockStored", True)
    assert lora_adapter_name(stored["lora_name"]) == "robot"


@needs_statistics
async def test_metrics_name_adapters_as_requests_do(
    gateway: GatewayProcess, client: openai.AsyncOpenAI
):
    """Routers compare these names with the field `model`. The second adapter waits for the first,
    because the engine runs one at a time.
    """
    reported = False
    for _ in range(5):
        holding = await hold(client, "demo:robot")
        waiting = asyncio.create_task(say(client, "demo:poet"))
        reported = await is_reported(
            gateway,
            waiting,
            "vllm:lora_requests_info",
            model="demo",
            running_lora_adapters="demo:robot",
            waiting_lora_adapters="demo:poet",
        )
        await holding.close()
        assert await waiting == POET
        if reported:
            break

    assert reported


@both
async def test_removed_adapter_folder_affects_no_request(
    gateway: GatewayProcess, client: openai.AsyncOpenAI, adapters: Path, model: str
):
    """A request waits for an adapter that another has evicted from the engine's memory. It is
    answered although the adapter is unloaded and its folder removed meanwhile.
    """
    held = False
    for _ in range(5):
        folder = adapters / "leaving"
        shutil.copytree(adapters / "pirate", folder)
        post(gateway, "load_lora_adapter", lora_name="leaving", model=model)
        holding = await hold(client, f"{model}:robot")
        waiting = asyncio.create_task(say(client, f"{model}:leaving"))
        began = await is_reported(gateway, waiting, IN_PROGRESS, model=model, adapter="leaving")
        shutil.rmtree(folder)
        gone = post(gateway, "unload_lora_adapter", lora_name="leaving", model=model)
        held = began and not waiting.done()
        await holding.close()
        assert gone.status_code == 200
        assert await waiting == PIRATE
        if held:
            break

    assert held
    assert await say(client, f"{model}:poet") == POET


async def test_adapter_that_vllm_refuses(
    gateway: GatewayProcess, client: openai.AsyncOpenAI, adapters: Path
):
    """Its files are valid, but it adapts a layer that the model lacks: the load fails with vLLM's
    reason, without a path, and the engine continues.
    """
    from tests.vllm import tiny_adapter

    a, b = (tiny_adapter.zeros(8, 128), tiny_adapter.zeros(128, 8))
    tiny_adapter.save(adapters / "foreign", {"model.layers.0.self_attn.odd_proj": (a, b)})
    refused = post(gateway, "load_lora_adapter", lora_name="foreign", model="demo")
    shutil.rmtree(adapters / "foreign")

    message = refused.json()["error"]["message"]
    assert refused.status_code == 503
    assert "odd_proj" in message
    assert "/tmp" not in message  # noqa: S108
    assert str(adapters) not in message
    assert await say(client, "demo:pirate") == PIRATE


async def test_kserve_requests_name_adapters_not_folders(gateway: GatewayProcess, adapters: Path):
    """In KServe requests, too, `lora_name` of NVIDIA's backend is an adapter's name."""
    url = f"{gateway.url}/v2/models/demo/generate"
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"

    def ask(name: str) -> httpx.Response:
        parameters = {"temperature": 0, "max_tokens": 16, "lora_name": name}
        text = json.dumps(parameters)
        body = {"text_input": prompt, "parameters": {"sampling_parameters": text}}
        return httpx.post(url, json=body, timeout=60)

    assert ask("pirate").json()["text_output"] == PIRATE
    for name in (str(adapters / "pirate"), "../pirate", "nobody"):
        refused = ask(name)
        assert refused.status_code == 404
        assert "no adapter with that name" in refused.text
