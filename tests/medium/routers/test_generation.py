"""Chat completions and completions over HTTP: responses, streams, errors and disconnects."""

import asyncio
import json
from typing import Any

import httpx
import openai
import openai.types
import openai.types.chat
import pytest

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta
from tests.fast.serving.fake_model import last
from tests.medium.routers.conftest import World, served


def events(response: httpx.Response) -> list[str]:
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    return [part.removeprefix("data: ") for part in parts]


@pytest.mark.honours("chat.model")
async def test_openai_python_reads_a_chat_completion(world):
    world.model()

    response = await world.chat()

    completion = openai.types.chat.ChatCompletion.model_validate(response.json())
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert completion.choices[0].message.content == "Hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_unsupported_hints_are_ignored_and_reported(world, stream):
    """The header `x-adjusted-parameters` lists them."""
    world.model()

    response = await world.chat(stream=stream, reasoning_effort="low", verbosity="high")

    assert response.status_code == 200
    told = response.headers["x-adjusted-parameters"]
    assert told == "reasoning_effort=ignored, verbosity=ignored"


async def test_render_reports_ignored_hints(world):
    """The header describes what the template received, as for the chat itself."""
    world.model()
    body = {"messages": [{"role": "user", "content": "hi"}], "verbosity": "high"}

    response = await world.client.post("/v1/chat/completions/render", json=body)

    assert response.headers["x-adjusted-parameters"] == "verbosity=ignored"


@pytest.mark.honours("completions.prompt", "completions.model")
async def test_openai_python_reads_a_completion(world):
    world.model()

    response = await world.client.post(
        "/v1/completions", json={"model": "fake", "prompt": ["a", "b"]}
    )

    completion = openai.types.Completion.model_validate(response.json())
    assert [choice.text for choice in completion.choices] == ["Hello", "Hello"]


@pytest.mark.honours("chat.stream")
async def test_chat_stream_starts_with_the_role_and_ends_with_done(world):
    """The last chunk has the finish reason."""
    world.model()

    response = await world.chat(stream=True)

    *chunks, done = events(response)
    read = [openai.types.chat.ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks]
    deltas = [(chunk.choices[0].delta.role, chunk.choices[0].delta.content) for chunk in read]
    assert deltas == [("assistant", ""), (None, "Hel"), (None, "lo"), (None, None)]
    assert [chunk.choices[0].finish_reason for chunk in read] == [None, None, None, "stop"]
    assert done == "[DONE]"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in read}) == 1


@pytest.mark.honours("completions.stream")
async def test_completion_stream_has_text_and_ends_with_done(world):
    """The last chunk has the finish reason."""
    world.model()
    body = {"model": "fake", "prompt": "a", "stream": True}

    response = await world.client.post("/v1/completions", json=body)

    *chunks, done = events(response)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["Hel", "lo", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert done == "[DONE]"


async def test_stream_headers_disable_proxy_buffering(world):
    """The server adds the headers that browsers need."""
    world.model()

    response = await world.chat(stream=True)

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req_")


async def sent_by(world: World, **fields: Any) -> list[Any]:
    """The ASGI messages of a streamed chat, as the application sends them."""
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    messages = []
    request = [
        {
            "type": "http.request",
            "body": json.dumps({**body, **fields}).encode(),
            "more_body": False,
        }
    ]

    async def receive():
        if not request:
            await asyncio.Event().wait()
        return request.pop()

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"host", b"localhost")],
        "query_string": b"",
    }
    await world.app(scope, receive, send)
    return messages


USAGE = {"stream_options": {"include_usage": True}}
# The model's bursts -> the number of events in each write
WRITES: dict[str, tuple[list[list[CompletionDelta]], dict[str, Any], list[int]]] = {
    "each burst": ([[*map(CompletionDelta, "abc")], [CompletionDelta("d")], [last("e")]], USAGE,
                   [4, 1, 4]),
    "all in one burst": ([[CompletionDelta("a"), last("b")]], {}, [5]),
    "half a character": ([[CompletionDelta("a")], [CompletionDelta("")], [last("b")]], {}, [2, 3]),
}  # fmt: skip


@pytest.mark.parametrize(("bursts", "fields", "events"), WRITES.values(), ids=WRITES)
async def test_each_burst_is_one_write(world, bursts, fields, events):
    """The role comes with the first, `[DONE]` with the last. A burst without text is none."""
    world.model(bursts)

    start, *writes = await sent_by(world, **fields)

    assert start["type"] == "http.response.start"
    assert [write["body"].count(b"data: ") for write in writes] == events
    assert [write["more_body"] for write in writes] == [True] * (len(events) - 1) + [False]
    assert b'"role":"assistant"' in writes[0]["body"]
    assert writes[-1]["body"].endswith(b"data: [DONE]\n\n")


@pytest.mark.honours("chat.n")
async def test_streamed_choices_start_with_all_roles(world):
    """With `n` choices, the roles come first, in order. Each choice has its own text."""
    world.model()

    response = await world.chat(stream=True, n=3)

    choices = [json.loads(event)["choices"][0] for event in events(response)[:-1]]
    assert [choice["index"] for choice in choices[:3]] == [0, 1, 2]
    assert {"assistant"} == {choice["delta"]["role"] for choice in choices[:3]}
    texts = ["", "", ""]
    for choice in choices:
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["Hello"] * 3


FAILURES = [(InferenceFailed("0xdeadbeef"), "inference_failed"), (ValueError("0xdeadbeef"), None)]


@pytest.mark.parametrize(("failure", "code"), FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_first_byte_has_an_error_status(
    world, caplog, failure, code, stream
):
    """Streamed or not. The response hides the cause; the log has it."""
    world.model([], failure=failure)

    response = await world.chat(stream=stream)

    assert (500, code) == (response.status_code, response.json()["error"]["code"])
    assert "0xdeadbeef" not in response.text
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-request-id"] in caplog.text
    assert "0xdeadbeef" in caplog.text


async def test_requests_get_503_while_the_models_load(starting):
    """The `retry-after` header asks clients to retry."""

    response = await starting.chat()

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "model_unavailable")
    assert error["message"] == "The models are still loading."
    assert response.headers["retry-after"] == "5"


async def test_startup_failure_is_reported_immediately(starting):
    """The application keeps the exception, with which the process ends."""
    told = asyncio.Event()
    starting.server.failure = ValueError("no library")
    starting.app.state.startup.on_failure = told.set

    starting.server.may_start.set()
    await told.wait()

    assert starting.server.failure is starting.app.state.startup.failure


async def test_on_core_runs_before_the_models_are_known(starting):
    """After the engines are created and before the first request."""
    told: list[bool] = []
    starting.app.state.startup.on_core = lambda: told.append(starting.registry.known.is_set())

    starting.server.may_start.set()
    await starting.registry.known.wait()

    assert told == [False]
    assert starting.server.live


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "n": 3}], ids=str)
@pytest.mark.parametrize("bursts", [[], [[CompletionDelta("a")]]], ids=["before", "after"])
async def test_disconnect_ends_the_generation(world, fields, bursts):
    """Before or after the first token."""
    model = world.model(bursts, endless=True)

    async with served(world) as (_, url), httpx.AsyncClient() as client:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **fields}
        request = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body))
        await model.begun.wait()
        await asyncio.sleep(0.05)  # lets the first tokens, if any, be sent
        request.cancel()
        await asyncio.wait([request])
        async with asyncio.timeout(30):
            await model.ended.wait()

    assert len(model.requests) == fields.get("n", 1)


async def test_disconnect_logs_no_error(world, caplog):
    model = world.model([[CompletionDelta("a")]], endless=True)

    async with served(world) as (_, url), httpx.AsyncClient() as client:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            await anext(response.aiter_bytes())
        async with asyncio.timeout(30):
            await model.ended.wait()
        await asyncio.sleep(0.05)

    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_shutdown_ends_long_streams_with_an_error_event(world):
    """Streams that outlast the grace period do not end silently."""
    model = world.model([[CompletionDelta("a")]], endless=True)

    async with (
        served(world) as (server, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client,
    ):
        stream = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        await anext(stream)
        server.exit()
        with pytest.raises(openai.APIError, match="shutting down"):
            async for _ in stream:
                pass

    assert model.open == 0


async def test_client_that_leaves_while_its_prompt_is_tokenized(world, monkeypatch):
    """Its completion ends before the generation starts."""
    model, begun, ended = world.model(), asyncio.Event(), asyncio.Event()

    async def tokenize(text: str, **options: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(model, "tokenize", tokenize)
    async with served(world) as (_, url), httpx.AsyncClient() as client:
        body = {"model": "fake", "prompt": "hi"}
        asking = asyncio.create_task(client.post(f"{url}/v1/completions", json=body))
        async with asyncio.timeout(30):
            await begun.wait()
            asking.cancel()
            await asyncio.wait([asking])
            await ended.wait()

    assert model.requests == []


async def test_openai_python_gets_the_413_while_it_sends_the_body(world):
    async with (
        served(world) as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client,
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            await client.completions.create(model="fake", prompt="x" * 40_000)

    assert (raised.value.status_code, raised.value.code) == (413, "request_too_large")
