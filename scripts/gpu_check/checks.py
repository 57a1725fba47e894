"""What must work: one request of each kind to a gateway in its own process, and a killed engine."""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.api.lora.trained import ANSWERS, QUESTION
from tests.gateway_process import ROOT, GatewayProcess

MODELS = ("demo", "demo-embedding")
# Both engines share the GPU, and compiling models of a million weights would take most of the time
_ON_GPU = {
    "kv_cache_memory_bytes": 512 * 1024**2,
    "gpu_memory_utilization": 0.3,
    "enforce_eager": True,
}
_SLEEP = {"enable_sleep_mode": True}
_LORA = {"enable_lora": True, "max_lora_rank": 8}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}},
    "required": ["city"],
    "additionalProperties": False,
}
_ADAPTER = "pirate"
_RESTART_S = 180.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    seconds: float
    detail: str  # what was seen, or why it failed


def run(folder: Path, *, cpu: bool, say: Callable[[str], None]) -> Iterator[Check]:
    """Every check in turn; nothing after a gateway that does not start."""
    repository = write_repository(folder / "models", cpu=cpu)
    adapters = write_adapter(folder / "adapters")
    option = f"--model-option=demo:adapter_folder={adapters}"
    manage = "--model-control-mode=explicit", "--enable-model-management"
    with GatewayProcess(repository, folder / "gateway.log", option, *manage) as gateway:
        started = checked("start", lambda: start(gateway))
        say(f"start: {started.detail}")
        yield started
        if not started.passed:
            return
        with openai.OpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            for name, work in CHECKS.items():
                done = checked(name, partial(work, client, gateway))
                say(f"{name}: {done.detail}")
                yield done


def checked(name: str, work: Callable[[], str]) -> Check:
    """Run one check; what it raises is its result."""
    begun = time.monotonic()
    try:
        passed, detail = True, work()
    except (
        AssertionError,
        ValueError,
        LookupError,
        httpx.HTTPError,
        jsonschema.ValidationError,
        openai.OpenAIError,
    ) as error:
        passed, detail = False, f"{type(error).__name__}: {error}"
    return Check(name, passed, time.monotonic() - begun, detail)


def write_repository(folder: Path, *, cpu: bool) -> Path:
    """The demo models, with LoRA, and on a GPU with a share of it for each."""
    for name in MODELS:
        shutil.copytree(ROOT / "model_repository" / name, folder / name)
        path = folder / name / "1" / "model.json"
        added = ({} if cpu else _ON_GPU | _SLEEP) | (_LORA if name == "demo" else {})
        path.write_text(json.dumps(json.loads(path.read_text()) | added))
    return folder


def write_adapter(folder: Path) -> Path:
    """An adapter that answers every prompt with one sentence, trained in seconds."""
    from tests.vllm import tiny_adapter  # imports torch

    base = ROOT / "model_repository" / "demo" / "1" / "weights"
    tiny_adapter.write(folder / _ADAPTER, ANSWERS[_ADAPTER], base=base)
    return folder


def start(gateway: GatewayProcess) -> str:
    gateway.wait_until_ready(300)
    return f"{len(gateway.engine_processes())} engines"


def asked(**options: Any) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 64,
        "temperature": 0,
        **options,
    }


def chat(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """The stream says what the complete answer says."""
    whole = client.chat.completions.create(**asked())
    stream = client.chat.completions.create(
        **asked(stream=True, stream_options={"include_usage": True})
    )
    chunks = list(stream)
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    finished = [each.choices[0].finish_reason for each in chunks if each.choices]
    usage = chunks[-1].usage
    assert text, "the stream has no text"
    assert text == whole.choices[0].message.content, f"streamed {text!r}, complete {whole!r}"
    assert finished[-1] in ("stop", "length"), finished
    assert usage is not None, "the last chunk has no usage"
    assert usage.completion_tokens == whole.usage.completion_tokens, "usage differs"
    return f"{len(chunks)} chunks, {usage.completion_tokens} tokens, equal to the complete answer"


def tools(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """A required call has arguments of its schema."""
    function = {"name": "get_weather", "parameters": _WEATHER}
    answer = client.chat.completions.create(
        **asked(
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
        )
    )
    [call] = answer.choices[0].message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), _WEATHER)
    return f"{call.function.name}({call.function.arguments})"


def json_schema(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """The answer is JSON of the schema, at a temperature that a model alone would not survive."""
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": _SCHEMA, "strict": True},
    }
    answer = client.chat.completions.create(
        **asked(response_format=response_format, temperature=1.5, seed=7)
    )
    text = str(answer.choices[0].message.content)
    jsonschema.validate(json.loads(text), _SCHEMA)
    return text


def lora(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """The adapter's answer, and beside it the base's."""
    said = {
        model: client.chat.completions.create(**asked(model=model, max_tokens=16))
        .choices[0]
        .message.content
        for model in (f"demo:{_ADAPTER}", "demo")
    }
    assert said[f"demo:{_ADAPTER}"] == ANSWERS[_ADAPTER], said
    assert said["demo"] != ANSWERS[_ADAPTER], said
    return str(said[f"demo:{_ADAPTER}"])


def embeddings(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """Unit vectors; the same text gives the same one."""
    texts = [
        "How do I stop the server?",
        "Bread needs flour and water.",
        "How do I stop the server?",
    ]
    answer = client.embeddings.create(model="demo-embedding", input=texts)
    first, other, again = (each.embedding for each in answer.data)
    norm = math.sqrt(sum(value * value for value in first))
    assert math.isclose(norm, 1, abs_tol=1e-2), f"norm {norm}"
    alike, unlike = (
        sum(a * b for a, b in zip(first, each, strict=True)) for each in (again, other)
    )
    assert alike > 0.99 > unlike, f"cosines {alike:.3f} and {unlike:.3f}"
    return f"{len(first)} dimensions, cosine of two subjects {unlike:.2f}"


def metrics(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """vLLM's counters moved, and no request is left."""
    text = httpx.get(f"{gateway.url}/metrics", timeout=30).text
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    tokens = sum(each.value for each in samples if each.name == "vllm:generation_tokens_total")
    running = sum(each.value for each in samples if each.name == "openai_frontend_requests_running")
    assert tokens > 0, "vllm:generation_tokens_total is 0"
    assert running == 0, f"openai_frontend_requests_running is {running}"
    return f"{len(samples)} samples, {tokens:.0f} generated tokens"


def sleep_and_wake(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """Models answer the same after they slept at each level, and their sleep frees memory. Without
    CUDA it is refused with the reason.
    """
    seen = []
    for model, level, ask in (("demo", 1, _answer), ("demo-embedding", 2, _vector)):
        before = ask(client)
        url = f"{gateway.url}/v1/models/{model}/sleep"
        response = httpx.post(url, json={"level": level}, timeout=120)
        if response.status_code == 409 and "enable_sleep_mode" in response.text:
            return "refused without CUDA"
        assert response.status_code == 200, response.text
        assert response.json()["status"] == {"value": "sleeping"}, response.json()["status"]
        freed = _sample(gateway, "openai_frontend_model_freed_bytes", model)
        begun = time.monotonic()
        after = ask(client)
        seconds = time.monotonic() - begun
        assert after == before, f"level {level}: {after!r}, before {before!r}"
        assert freed > 0, f"level {level} freed nothing"
        seen.append(f"level {level}: {freed / 2**20:.0f} MiB freed, answer after {seconds:.2f} s")
    return "; ".join(seen)


def _answer(client: openai.OpenAI) -> object:
    return client.chat.completions.create(**asked()).choices[0].message.content


def _vector(client: openai.OpenAI) -> object:
    data = client.embeddings.create(model="demo-embedding", input="Triton").data
    return [round(each, 3) for each in data[0].embedding]


def _sample(gateway: GatewayProcess, name: str, model: str) -> float:
    text = httpx.get(f"{gateway.url}/metrics", timeout=30).text
    families = text_string_to_metric_families(text)
    samples = [each for family in families for each in family.samples if each.name == name]
    return sum(each.value for each in samples if each.labels["model"] == model)


def killed_engine(client: openai.OpenAI, gateway: GatewayProcess) -> str:
    """`kill -9` ends the stream with an error; new engines answer after it."""
    stream = iter(
        client.chat.completions.create(
            **asked(stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
        )
    )
    next(stream)
    for engine in gateway.engine_processes():
        engine.kill()
    killed = time.monotonic()
    error = ended_by(stream)
    while not gateway.ready() or time.monotonic() - killed < 2:
        assert time.monotonic() - killed < _RESTART_S, f"not ready in {_RESTART_S:.0f} s"
        time.sleep(0.2)
    ready_s = time.monotonic() - killed
    answer = client.chat.completions.create(**asked())
    assert answer.choices[0].message.content, "no answer of the new engine"
    return f"the stream ended with {error}; ready again after {ready_s:.0f} s"


def ended_by(stream: Iterator[Any]) -> str:
    """The code of the error that ends a stream."""
    try:
        count = sum(1 for _ in stream)
    except openai.APIError as error:
        return str(error.code)
    raise AssertionError(f"the stream ended without an error after {count} chunks")


# In this order: the last one leaves new engines.
CHECKS: dict[str, Callable[[openai.OpenAI, GatewayProcess], str]] = {
    "chat, streamed": chat,
    "tools": tools,
    "JSON schema": json_schema,
    "LoRA": lora,
    "embeddings": embeddings,
    "metrics": metrics,
    "sleep and wake": sleep_and_wake,
    "kill -9 of the engines": killed_engine,
}
