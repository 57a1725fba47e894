"""Each route that runs a model, with clients that read nothing or leave, dead models and unloads:
the slot is free once the model has ended, and nothing of the request is left.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any

import httpx
import pytest

from openai_frontend.app import create_app
from openai_frontend.auth.api_keys import LIMITED
from openai_frontend.config.settings import Settings
from openai_frontend.triton import Options, Server
from tests.gateway_process import GatewayProcess
from tests.resilience.faults import held_models
from tests.resilience.faults.asking import (
    change,
    client_of,
    counted,
    load_all_again,
    none_runs,
    slots,
    unready,
    until,
)
from tests.resilience.faults.gate import Gate
from tests.resilience.faults.in_flight import Request, answer_of, answers_of, asked, has_begun
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.test_stub_faults import stub
from tests.resilience.faults.test_unload_of_lost_stubs import THREADS_OF_A_LOST_STUB

pytestmark = pytest.mark.slow

GROWTH_BYTES = 512 * 2**20  # the allocator keeps the memory of large answers
OPTIONS = "engine_max_restarts: 5\n"
MODELS = ("talks", "hears", "speaks", "echoes")
STUBS = ("speaks", "echoes")
DESCRIPTORS_OF_A_LOST_STUB = 2
SLOTS_ARE_FREE_WITHIN_S = 15
PIECE = "0123456789abcdef" * 256
# Routes that clients may use for inference, but that run no model
WITHOUT_MODEL = {
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
}


def text(route: str, **fields: Any) -> Request:
    """An answer of 3 MiB, in tokens of 4 KiB."""
    fields = {"model": "talks", "max_tokens": 2, **fields}
    return Request(route, fields, {"max_tokens": 768})


def chat(route: str = "/v1/chat/completions", **fields: Any) -> Request:
    return text(route, messages=[{"role": "user", "content": "hi"}], **fields)


def items(**fields: Any) -> Request:
    """The same as an item."""
    asked = {"model": "talks", "max_output_tokens": 2, "input": "hi", **fields}
    return Request("/v1/responses", asked, {"max_output_tokens": 768})


def heard(route: str, **fields: str) -> Request:
    fields = {"model": "hears", "language": "en", "max_completion_tokens": "2", **fields}
    return Request(route, fields, {"max_completion_tokens": "768"})


def spoken(format: str, seconds: int) -> Request:
    fields = {"model": "speaks", "input": "2", "voice": "default", "response_format": format}
    return Request("/v1/audio/speech", fields, {"input": str(seconds)})


def texts(route: str, *, model: str = "talks", **fields: Any) -> Request:
    """The documents are part of the answer, or a thousand of them have an entry each."""
    many = {name: value * 1000 for name, value in fields.items() if isinstance(value, list)}
    return Request(route, {"model": model, **fields}, many)


def tensors(route: str, body: Mapping[str, Any], large: Mapping[str, Any]) -> Request:
    return Request(route, {"model": "echoes", **body}, large)


def infer(size: int, *, binary: bool = False) -> dict[str, Any]:
    data = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["a" * size]}
    return {"inputs": [data], "parameters": {"binary_data_output": binary}}


_MIB = 2**20
_RERANK: dict[str, Any] = {"query": "hi", "documents": ["0123456789abcdef" * 8]}
_QUESTION: dict[str, Any] = {"type": "predicate", "instructions": "a"}
REQUESTS: dict[str, Request] = {
    "chat": chat(),
    "streamed chat": chat(stream=True),
    "streamed log probabilities": chat(stream=True, logprobs=True),
    "streamed chat at SageMaker": chat("/invocations", stream=True),
    "response": items(),
    "streamed response": items(stream=True),
    "message": chat("/v1/messages"),
    "streamed message": chat("/v1/messages", stream=True),
    "completion": text("/v1/completions", prompt="hi"),
    "streamed completion": text("/v1/completions", prompt="hi", stream=True),
    "decisions": Request(
        "/v1/decisions",
        {"model": "talks", "input": "hi", "questions": [_QUESTION]},
        {"questions": [{**_QUESTION, "name": PIECE}] * 400},
    ),
    "embeddings": texts("/v1/embeddings", input=["hi"]),
    "sparse embeddings": texts("/embed_sparse", inputs=["hi"]),
    "pooling": texts("/v1/pooling", input=["hi"]),
    "pooling of vLLM": texts("/pooling", input=["hi"]),
    "classification": texts("/v1/classify", input=["hi"]),
    "classification of vLLM": texts("/classify", input=["hi"]),
    "moderation": texts("/v1/moderations", input=["hi"]),
    "rerank": texts("/v1/rerank", **_RERANK),
    "rerank as at Cohere": texts("/v2/rerank", **_RERANK),
    "rerank in either form": texts("/rerank", **_RERANK),
    "scores": texts("/v1/score", text_1="hi", text_2=["hi"]),
    "scores of vLLM": texts("/score", text_1="hi", text_2=["hi"]),
    "transcription": heard("/v1/audio/transcriptions"),
    "streamed transcription": heard("/v1/audio/transcriptions", stream="true"),
    "translation": heard("/v1/audio/translations"),
    "streamed translation": heard("/v1/audio/translations", stream="true"),
    **{format: spoken(format, 20) for format in ("mp3", "opus", "flac")},
    **{f"streamed {format}": spoken(format, 120) for format in ("wav", "pcm")},
    "infer": tensors("/v2/models/{model}/infer", infer(8), infer(4 * _MIB)),
    "infer a version": tensors(
        "/v2/models/{model}/versions/{version}/infer", infer(8), infer(4 * _MIB, binary=True)
    ),
    "generate": tensors("/v2/models/{model}/generate", {"IN": "a"}, {"IN": "a" * 4 * _MIB}),
    "generate by a version": tensors(
        "/v2/models/{model}/versions/{version}/generate", {"IN": "a"}, {"IN": "a" * 4 * _MIB}
    ),
    "generate_stream": Request(
        "/v2/models/{model}/generate_stream",
        {"model": "speaks", "target_text": "1"}, {"target_text": "4"},
    ),
    "generate_stream by a version": Request(
        "/v2/models/{model}/versions/{version}/generate_stream",
        {"model": "speaks", "target_text": "1"}, {"target_text": "4"},
    ),
}  # fmt: skip


def test_every_route_for_inference_is_in_the_table(tmp_path):
    """A new one gets a row, or is listed as one without a model."""
    app = create_app(Settings(), Server(Options(model_repositories=[tmp_path])))
    routes = {each.path for each in app.state.routes if getattr(each, "scope", None) in LIMITED}

    assert {each.route for each in REQUESTS.values()} | WITHOUT_MODEL == routes


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gate]:
    folder = tmp_path_factory.mktemp("gates")
    return {name: Gate(folder / name) for name in ("answer", "life")}


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, gates: dict[str, Gate]
) -> Iterator[GatewayProcess]:
    """The send timeout ends no request of a test."""
    folder = tmp_path_factory.mktemp("routes")
    models = folder / "models"
    long = {"tokens": [PIECE], "max_model_len": 10**6}
    tasks = ["generate", "embed", "score", "classify", "token_classify"]
    classes = {"tasks": tasks, "labels": ["label"] * 512}
    held_models.write_mock(models, "talks", gates, dimensions=512, **classes, **long)
    held_models.write_mock(models, "hears", gates, audio_window_s=4, **long)
    held_models.write_speaker(models, "speaks", gates["answer"])
    held_models.write_echo(models, "echoes", gates["answer"])
    for each in MODELS:
        (models / each / "openai_frontend.yaml").write_text(OPTIONS)
    moderation = "moderation: {labels: {label: hate}}\n"
    (models / "talks" / "openai_frontend.yaml").write_text(OPTIONS + moderation)
    options = ["--model-control-mode=explicit", "--load-model=*", "--enable-model-management"]
    options += ["--send-timeout-s=600", "--exit-timeout-s=1"]
    with GatewayProcess(models, folder / "log", *options) as process:
        process.wait_until_ready()
        load_all_again(process, MODELS)
        with asked(process, REQUESTS, large=True) as connections:  # starts all other threads
            found = {name: answer_of(each) for name, each in connections.items()}
        assert found == dict.fromkeys(REQUESTS, (200, True))
        yield process


async def all_run(client: httpx.AsyncClient) -> bool:
    return await slots(client) == len(REQUESTS)


async def change_all(client: httpx.AsyncClient, verb: str) -> list[int]:
    return await asyncio.gather(*[change(client, each, verb) for each in MODELS])


async def state(client: httpx.AsyncClient) -> set[str]:
    entries = (await client.post("/v2/repository/index")).json()
    return {each["state"] for each in entries}


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(gateway) as made:
        yield made


async def test_clients_that_read_nothing_hold_no_slot_and_no_model(gateway, client):
    """Once the models have ended. The clients still get their whole answers, even of models that
    were unloaded meanwhile.
    """

    async def ended() -> bool:
        return all(map(has_begun, connections.values())) and await none_runs(client)

    for verb in ("unload", "load"):  # which start the threads of changes side by side
        assert await change_all(client, verb) == [200] * len(MODELS)
    async with no_trace_left(gateway, growth_bytes=GROWTH_BYTES):
        with asked(gateway, REQUESTS, large=True) as connections:
            await until(ended)
            assert await counted(client, "openai_frontend_requests_in_progress") > 5
            assert await change_all(client, "unload") == [200] * len(MODELS)
            found = await answers_of(connections)
        assert found == dict.fromkeys(REQUESTS, (200, True))
        assert await change_all(client, "load") == [200] * len(MODELS)


async def test_clients_that_leave_take_everything_with_them(gateway, client, gates):
    """Their slots are free once the models have ended, and nothing of a request is left."""
    async with no_trace_left(gateway, growth_bytes=GROWTH_BYTES):
        gates["answer"].close()
        with asked(gateway, REQUESTS):
            await until(partial(all_run, client))
        gates["answer"].open()
        await until(partial(none_runs, client))
        assert await slots(client) == 0


async def test_unload_ends_with_the_requests_in_flight(gateway, client, gates):
    """Which get their whole answers."""

    async def unloading() -> bool:
        return {"UNLOADING"} == await state(client)

    async with no_trace_left(gateway, growth_bytes=GROWTH_BYTES):
        gates["answer"].close()
        with asked(gateway, REQUESTS) as connections:
            await until(partial(all_run, client))
            unloads = asyncio.create_task(change_all(client, "unload"))
            await until(unloading)
            gates["answer"].open()
            found = await answers_of(connections)
        assert found == dict.fromkeys(REQUESTS, (200, True))
        assert await unloads == [200] * len(MODELS)
        assert await change_all(client, "load") == [200] * len(MODELS)


@pytest.mark.parametrize("unloads", [False, True], ids=["restarted", "unloaded"])
async def test_requests_of_dead_models_end(gateway, client, gates, unloads):
    """Each with an error, or an incomplete answer, and frees its slot, also if an unload follows
    at once; then the models serve again. Only threads that Triton keeps are left.
    """

    async def all_serve() -> bool:
        return not await unready(client)

    async with no_trace_left(gateway, deadline_s=120, growth_bytes=GROWTH_BYTES) as kept:
        gates["answer"].close()
        with asked(gateway, REQUESTS) as connections:
            await until(partial(all_run, client))
            for each in STUBS:
                stub(gateway, each).kill()
                kept.threads += THREADS_OF_A_LOST_STUB
                kept.descriptors += DESCRIPTORS_OF_A_LOST_STUB
            gates["life"].close()
            changes = asyncio.create_task(change_all(client, "unload")) if unloads else None
            found = await answers_of(connections)
        assert not [name for name, answer in found.items() if answer == (200, True)]
        await until(partial(none_runs, client), SLOTS_ARE_FREE_WITHIN_S)
        for gate in gates.values():
            gate.open()
        if changes is not None:
            assert await changes == [200] * len(MODELS)
            assert await change_all(client, "load") == [200] * len(MODELS)
        await until(all_serve)
        with asked(gateway, REQUESTS) as connections:
            found = await answers_of(connections)
        assert found == dict.fromkeys(REQUESTS, (200, True))
