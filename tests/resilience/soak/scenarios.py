"""The scenarios that a soak's clients run. Each ends as it expects or raises."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.resilience.soak import models
from tests.resilience.soak.client import Client, Unexpected

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WHOLE = models.TEXT * models.ANSWER_TOKENS
LONG_ENOUGH = {"max_tokens": 100}  # a completion's default is 16


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Unexpected(f"{what}: {str(found)[:80]!r}")


def messages(chance: random.Random) -> list[dict[str, str]]:
    """Return a prompt of one word to one page."""
    return [{"role": "user", "content": "hello " * chance.choice([1, 5, 50, 500])}]


async def chat(client: Client, chance: random.Random) -> None:
    """Get a complete answer."""
    answer = await client.post(CHAT, model="talker", messages=messages(chance))
    expect(answer["choices"][0]["message"]["content"], WHOLE, "text")


async def chat_stream(client: Client, chance: random.Random) -> None:
    """Read a stream to its end."""
    options: dict[str, Any] = chance.choice(
        [{}, {"stream_options": {"include_usage": True}}, {"logprobs": True}]
    )
    text, last = "", ""
    async with client.stream(CHAT, model="talker", messages=messages(chance), **options) as events:
        async for last in events:
            for choice in [] if last == "[DONE]" else json.loads(last)["choices"]:
                text += choice["delta"].get("content") or ""
    expect((last, text), ("[DONE]", WHOLE), "stream")


async def choices(client: Client, chance: random.Random) -> None:
    """Get several answers to each of several prompts."""
    n = chance.randint(2, 5)
    answer = await client.post(COMPLETIONS, model="talker", prompt=["a", "b"], n=n, **LONG_ENOUGH)
    expect({each["text"] for each in answer["choices"]}, {WHOLE}, "texts")
    expect(len(answer["choices"]), 2 * n, "choices")


async def tools(client: Client, chance: random.Random) -> None:
    """Get a tool call, complete or streamed."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    offered = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    asked: dict[str, Any] = {"model": "caller", "messages": messages(chance), "tools": offered}
    if chance.random() < 0.5:
        choice = (await client.post(CHAT, **asked))["choices"][0]
        expect(choice["finish_reason"], "tool_calls", "finish reason")
        expect(len(choice["message"]["tool_calls"]), 1, "calls")
        return
    async with client.stream(CHAT, **asked) as events:
        reasons = [
            choice["finish_reason"]
            async for event in events
            if event != "[DONE]"
            for choice in json.loads(event)["choices"]
        ]
    expect(reasons[-1], "tool_calls", "finish reason")


async def embeddings(client: Client, chance: random.Random) -> None:
    """Embed one or many texts."""
    texts = ["some text"] * chance.choice([1, 8, 64])
    form = chance.choice(["float", "base64"])
    answer = await client.post(
        "/v1/embeddings", model="embedder", input=texts, encoding_format=form
    )
    expect(len(answer["data"]), len(texts), "vectors")


async def ensemble(client: Client, chance: random.Random) -> None:
    """Call two Python models, each in its own process, through the KServe protocol."""
    given = {"name": "QUESTION", "shape": [2], "datatype": "BYTES", "data": ["a", "b" * 5000]}
    answer = await client.post("/v2/models/ensemble/infer", inputs=[given])
    expect(answer["outputs"][0]["data"], given["data"], "tensor")


BAD: tuple[tuple[str, bytes, int, dict[str, str]], ...] = (
    (CHAT, b"{", 400, {}),
    (CHAT, b'{"model":"talker","messages":[]}', 400, {}),
    (CHAT, b'{"model":"nobody","messages":[{"role":"user","content":"a"}]}', 404, {}),
    (COMPLETIONS, b'{"model":"talker","prompt":"a","n":1000000}', 400, {}),
    (COMPLETIONS, b'{"model":"talker","prompt":"' + b"a b " * 50_000 + b'"}', 400, {}),
    (COMPLETIONS, b"[" * 10_000, 400, {}),
    (CHAT, b"x", 415, {"content-type": "text/plain"}),
    (CHAT, b"x", 415, {"content-encoding": "gzip"}),
    ("/v2/models/ensemble/infer", b'{"inputs":[{"name":"QUESTION"}]}', 400, {}),
    ("/v1/nothing", b"{}", 404, {}),
)


async def bad_input(client: Client, chance: random.Random) -> None:
    """Expect the error status of each kind of bad input."""
    path, content, status, headers = chance.choice(BAD)
    await client.send(path, content, status, **{"content-type": "application/json", **headers})


async def failing(client: Client, chance: random.Random) -> None:
    """Use an engine that fails midway: a 500, or a stream that ends with an error."""
    if chance.random() < 0.5:
        await client.post(COMPLETIONS, 500, model="failing", prompt="a", max_tokens=9)
        return
    async with client.stream(COMPLETIONS, model="failing", prompt="a", max_tokens=9) as events:
        seen = [json.loads(event) async for event in events]
    expect(["error" in event for event in seen], [False] * (len(seen) - 1) + [True], "events")


async def crash(client: Client, chance: random.Random) -> None:
    """Reset the connection mid-stream, as if the client's machine failed."""
    async with client.raw_stream(model="slow", prompt="a", max_tokens=2000):
        await asyncio.sleep(chance.uniform(0, 0.5))


async def cancel(client: Client, chance: random.Random) -> None:
    """Close the connection normally, before the first token or after some."""
    asked: dict[str, Any] = {"model": "slow", "prompt": "a", "max_tokens": 2000}
    if chance.random() < 0.3:
        try:
            await asyncio.wait_for(client.post(COMPLETIONS, **asked), chance.uniform(0.01, 0.5))
        except TimeoutError:
            return
        raise Unexpected("2,000 slow tokens came at once")
    async with client.stream(COMPLETIONS, **asked) as events:
        for _ in range(chance.randint(1, 20)):
            await anext(events)


async def half_close(client: Client, chance: random.Random) -> None:
    """Half-close the connection. The server may finish or drop the stream, and keeps nothing."""
    async with client.raw_stream(model="slow", prompt="a", max_tokens=20) as (reader, writer):
        writer.write_eof()
        async with asyncio.timeout(20):
            while await reader.read(4096):  # until the server closes or the stream ends
                if chance.random() < 0.1:
                    return


async def stall(client: Client, chance: random.Random) -> None:
    """Read nothing for seconds while a fast model fills the buffers."""
    async with client.raw_stream(
        model="talker", prompt="a", max_tokens=3500, ignore_eos=True, echo=False
    ):
        await asyncio.sleep(chance.uniform(1, 6))


async def reload(client: Client, chance: random.Random) -> None:
    """Reload a model, or unload it and load it again."""
    async with client.changing:
        client.generation += 1
        models.write_spare(client.repository, client.generation)
        if chance.random() < 0.3:
            await client.post("/v1/models/spare/unload")
        await client.post("/v1/models/spare/load")


async def spare(client: Client, chance: random.Random) -> None:
    """Call the model that `reload` changes: a complete answer, or 503 model_unavailable."""
    try:
        answer = await client.post(COMPLETIONS, model="spare", prompt="a", **LONG_ENOUGH)
    except Unexpected as error:
        if str(error) != "503 model_unavailable":
            raise
        return
    expect(answer["choices"][0]["text"], WHOLE, "text")


async def adapter(client: Client, chance: random.Random) -> None:
    """Unload and load an adapter, and call it."""
    name = f"talker:{models.ADAPTER}"
    async with client.changing:
        if chance.random() < 0.3:
            await client.post("/v1/unload_lora_adapter", lora_name=name)
            await client.post("/v1/load_lora_adapter", lora_name=name)
        answer = await client.post(COMPLETIONS, model=name, prompt="a", max_tokens=2)
    expect(answer["choices"][0]["text"], f" {models.ADAPTER}" * 2, "text")


async def look(client: Client, chance: random.Random) -> None:
    """Request what monitoring and clients poll."""
    await client.get(chance.choice(["/metrics", "/health/live", "/v1/models", "/v2"]))


async def engine(client: Client, chance: random.Random) -> None:
    """Call vLLM's model: complete, streamed, and abandoned midway."""
    asked: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    way = chance.randrange(3)
    if way == 0:
        await client.post(CHAT, **asked, max_tokens=16, n=2)
        return
    async with client.stream(CHAT, **asked, max_tokens=100, ignore_eos=True) as events:
        seen = [await anext(events)]
        if way == 1:
            return
        seen += [event async for event in events]
    expect(seen[-1], "[DONE]", "last event")


Scenario = Callable[[Client, random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario and its weight in the random choice."""

    play: Scenario
    weight: int

    @property
    def name(self) -> str:
        return self.play.__name__


ROWS = (
    Row(chat, 20),
    Row(chat_stream, 30),
    Row(choices, 8),
    Row(tools, 8),
    Row(embeddings, 10),
    Row(ensemble, 10),
    Row(bad_input, 10),
    Row(failing, 5),
    Row(crash, 8),
    Row(cancel, 8),
    Row(half_close, 3),
    Row(stall, 3),
    Row(reload, 1),
    Row(spare, 6),
    Row(adapter, 4),
    Row(look, 4),
)
ENGINE_ROWS = (Row(engine, 8),)

FAILURES = (Unexpected, httpx.HTTPError, OSError, EOFError, TimeoutError, ValueError, LookupError)
"""What a scenario may raise: all of it is an error of the soak's."""
