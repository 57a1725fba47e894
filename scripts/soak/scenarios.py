"""The scenarios that a soak's clients run. Each ends as it expects or raises."""

import asyncio
import base64
import contextlib
import hashlib
import json
import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy
import psutil

from scripts.soak import kserve, models
from scripts.soak.client import Client, Unexpected, expect
from tests import audio, images, recordings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
WHOLE = models.TEXT * models.ANSWER_TOKENS
LONG_ENOUGH = {"max_tokens": 100}  # a completion's default is 16


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


# That every client sends. The shade is the filter of each row too, of which PNG has five.
PICTURES = [images.png(64, 64, shade=shade) for shade in range(5)]
BAD_PICTURES = (
    "data:image/png;base64,not base64",
    "data:image/png;base64,AAAA",
    "https://localhost/picture.png",
    images.data_url(images.png(50_000, 50_000)),
    images.data_url(images.png(1, 16_000)),
    images.data_url(images.png()[:30]),
    images.data_url(b"GIF87a"),
)


def picture(chance: random.Random) -> bytes:
    """Return a known picture, or one that nobody has sent."""
    if chance.random() < 0.5:
        return chance.choice(PICTURES)
    noise = images.chunk(b"teXt", chance.randbytes(chance.choice([16, 4096, 100_000])))
    return images.png(chance.randint(4, 64), chance.randint(4, 64), before=noise)


def showing(chance: random.Random, most: int = 4) -> list[dict[str, Any]]:
    """Return a message with pictures."""
    parts = [images.part(picture(chance)) for _ in range(chance.randint(1, most))]
    return [{"role": "user", "content": [*parts, images.text("Describe the picture.")]}]


def _described(part: dict[str, Any]) -> str:
    """How `sees` describes the image of a part: its size, and the beginning of its digest."""
    text = part["image_url"]["url"].partition(",")[2]
    width, height = struct.unpack(">II", base64.b64decode(text)[16:24])
    return f"png {width}x{height} auto {hashlib.sha256(text.encode()).hexdigest()[:8]}"


async def pictures(client: Client, chance: random.Random) -> None:
    """Send new and known images, complete or streamed, or name one by its uuid: the model gets
    these and no others.
    """
    asked: dict[str, Any] = {"model": "sees", "messages": showing(chance)}
    described = "; ".join(map(_described, asked["messages"][0]["content"][:-1]))
    if chance.random() < 0.3:
        part = asked["messages"][0]["content"][0]
        part["uuid"] = f"{chance.getrandbits(64):x}"
        await client.post(CHAT, **asked)
        asked["messages"][0]["content"][0] = {**part, "image_url": None}
    if chance.random() < 0.5:
        answer = await client.post(CHAT, **asked)
        expect(answer["choices"][0]["message"]["content"], described, "text")
        return
    text, last = "", ""
    async with client.stream(CHAT, **asked) as events:
        async for last in events:
            for choice in [] if last == "[DONE]" else json.loads(last)["choices"]:
                text += choice["delta"].get("content") or ""
    expect((last, text), ("[DONE]", described), "stream")


async def bad_pictures(client: Client, chance: random.Random) -> None:
    """Get a 400 for an image that is none, too large, or not sent at all, and for too many."""
    asked = showing(chance)
    bad = {"type": "image_url", "image_url": {"url": chance.choice(BAD_PICTURES)}}
    asked[0]["content"] += chance.choice([[bad], [images.part(PICTURES[0])] * 17])
    await client.post(CHAT, 400, model="sees", messages=asked)


SAID = audio.spoken(["one", "two", "three"])
FILES = {
    (format, long): audio.file(numpy.tile(SAID, 8) if long else SAID, format)
    for format in ("WAV", "FLAC", "OGG", "MP3")
    for long in (False, True)
}
BAD_FILES = (b"", b"no audio", FILES["WAV", False][:40], FILES["FLAC", True][:200], b"OggS" * 99)


async def transcription(client: Client, chance: random.Random) -> None:
    """Send audio of one window or several, in each format."""
    format, long = chance.choice([*FILES])
    form = chance.choice(["json", "verbose_json"])
    answer = await client.upload(
        TRANSCRIPTIONS, FILES[format, long], model="hears", language="en", response_format=form
    )
    words = answer["text"].split()
    expect((set(words), len(words) > 1), ({models.TEXT.strip()}, long), "text")


async def bad_audio(client: Client, chance: random.Random) -> None:
    """Get a 400 for a file that is no audio, or not all of it."""
    await client.upload(TRANSCRIPTIONS, chance.choice(BAD_FILES), 400, model="hears")


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


async def engine_pictures(client: Client, chance: random.Random) -> None:
    """Have vLLM's processes decode new and known images, and some that cannot be decoded."""
    asked: dict[str, Any] = {"model": "demo-vision", "messages": showing(chance), "max_tokens": 8}
    if chance.random() < 0.2:
        whole = images.png(64, 64)
        broken = chance.choice([whole.replace(b"IDAT", b"IDAx"), whole[:-30]])
        asked["messages"][0]["content"][0] = images.part(broken)
        await client.post(CHAT, 400, **asked)
        return
    answer = await client.post(CHAT, **asked)
    count = len(asked["messages"][0]["content"]) - 1
    expect(answer["usage"]["prompt_tokens_details"]["image_tokens"], 16 * count, "image tokens")


async def engine_audio(client: Client, chance: random.Random) -> None:
    """Transcribe what was said, a known recording or louder than ever before."""
    samples = recordings.read("english").samples * chance.choice([1.0, chance.uniform(0.5, 1.0)])
    file = audio.file(samples, chance.choice(["WAV", "FLAC"]))
    answer = await client.upload(TRANSCRIPTIONS, file, model="demo-speech", language="en")
    expect(answer["text"], recordings.read("english").text().strip(), "text")


SOUNDS = [audio.spoken(words) for words in (["one", "two"], ["three", "nine"], ["five", "zero"])]
SOUND_TOKENS = 25  # of a second, with this model


def sound(chance: random.Random) -> dict[str, Any]:
    """Return a part of a chat with audio that every client sends, or with new audio."""
    samples = chance.choice(SOUNDS) * chance.choice([1.0, chance.uniform(0.5, 1.0)])
    format = chance.choice(["wav", "flac"])
    return audio.part(audio.file(samples, format.upper()), format)


def hearing(chance: random.Random) -> dict[str, Any]:
    """Return the fields of a chat with audio."""
    parts = [sound(chance) for _ in range(chance.randint(1, 3))]
    messages = [{"role": "user", "content": [*parts, images.text("What is said?")]}]
    return {"model": models.HEARS_CHATS, "messages": messages, "max_tokens": 8}


async def engine_sounds(client: Client, chance: random.Random) -> None:
    """Have vLLM's processes decode new and known audio of chats, and some that is none."""
    asked = hearing(chance)
    parts = asked["messages"][0]["content"]
    if chance.random() < 0.2:
        file = chance.choice([FILES["WAV", False][:40], FILES["FLAC", True][:200]])
        parts[0] = audio.part(file, "wav" if file.startswith(b"RIFF") else "flac")
        await client.post(CHAT, 400, **asked)
        return
    answer = await client.post(CHAT, **asked)
    counted = answer["usage"]["prompt_tokens_details"]["audio_tokens"]
    expect(counted, SOUND_TOKENS * (len(parts) - 1), "audio tokens")


async def engine_abandoned(client: Client, chance: random.Random) -> None:
    """Reset the connection while media is sent, decoded, or answered."""
    way = chance.randrange(3)
    if way == 0:
        asked = {"model": "demo-vision", "messages": showing(chance), "max_tokens": 50}
        request = client.request(CHAT, json={**asked, "ignore_eos": True, "stream": True})
    elif way == 1:
        request = client.request(CHAT, json={**hearing(chance), "ignore_eos": True})
    else:
        file = {"file": FILES[chance.choice([*FILES])]}
        request = client.request(TRANSCRIPTIONS, files=file, data={"model": "demo-speech"})
    sent = chance.choice([1.0, chance.random()])
    await client.abandon(request, sent=sent, after_s=chance.uniform(0, 0.2))


async def fill_media_pools(client: Client) -> None:
    """Have as much new media at once as to start every thread and process of the media pools, which
    start only for work that would wait.
    """
    chance = random.Random(0)
    said = recordings.read("english").samples
    for _ in range(2):
        loud = [audio.part(audio.file(SAID * chance.uniform(0.5, 1.0))) for _ in range(24)]
        seen = [images.part(picture(chance)) for _ in range(48)]
        content = [
            *((models.HEARS_CHATS, loud[at : at + 3]) for at in range(0, 24, 3)),
            *(("demo-vision", seen[at : at + 6]) for at in range(0, 48, 6)),
        ]
        chats = [
            client.post(CHAT, model=model, messages=[{"role": "user", "content": parts}])
            for model, parts in content
        ]
        long = [
            audio.file(numpy.tile(said * chance.uniform(0.5, 1.0), 16), "MP3") for _ in range(4)
        ]
        uploads = [
            client.upload(TRANSCRIPTIONS, file, model="demo-speech", language="en") for file in long
        ]
        await asyncio.gather(*chats, *uploads)


async def kill(client: Client, chance: random.Random) -> None:
    """Kill a process of a model, or stop it for seconds: a stub of the Python backend or vLLM's
    engine.
    """
    stubs, engines = _stubs(client), client.gateway.engine_processes()
    victim = chance.choice([*stubs, *engines])
    client.killed["stubs" if victim in stubs else "engines"] += 1
    if chance.random() < 0.5:
        victim.kill()
        return
    victim.suspend()
    await asyncio.sleep(chance.uniform(0.5, 12))
    with contextlib.suppress(psutil.NoSuchProcess):  # the gateway has killed it
        victim.resume()


def _stubs(client: Client) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(client.gateway.pid).children(recursive=True)
        if "triton_python_backend_stub" in "".join(_command(process)[:1])
    ]


def _command(process: psutil.Process) -> list[str]:
    """Empty if the process has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


Scenario = Callable[[Client, random.Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario and its weight in the random choice."""

    play: Scenario
    weight: int
    in_process: bool = False  # its model runs in a process of its own, which `kill` may choose

    @property
    def name(self) -> str:
        return self.play.__name__


ROWS = (
    Row(chat, 20),
    Row(chat_stream, 30),
    Row(choices, 8),
    Row(tools, 8),
    Row(embeddings, 10),
    Row(ensemble, 10, in_process=True),
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
    Row(pictures, 10),
    Row(bad_pictures, 5),
    Row(transcription, 5),
    Row(bad_audio, 3),
    Row(kserve.kserve_http, 8, in_process=True),
    Row(kserve.kserve_grpc, 8, in_process=True),
    Row(kserve.generate_stream, 6),
    Row(kserve.grpc_stream, 6),
    Row(kserve.grpc_cancel, 4),
    Row(kserve.shared_memory, 5, in_process=True),
    Row(kserve.bad_tensors, 4),
)
ENGINE_ROWS = (
    Row(engine, 8, in_process=True),
    Row(engine_pictures, 8, in_process=True),
    Row(engine_audio, 4, in_process=True),
    Row(engine_sounds, 4, in_process=True),
    Row(engine_abandoned, 4, in_process=True),
)
MEDIA = (
    look, pictures, bad_pictures, transcription, bad_audio, engine_pictures, engine_audio,
    engine_sounds, engine_abandoned,
)  # fmt: skip

FAILURES = (
    Unexpected, httpx.HTTPError, grpc.RpcError, OSError, EOFError, TimeoutError, ValueError,
    LookupError,
)  # fmt: skip
"""What a scenario may raise: all of it is an error of the soak's."""
