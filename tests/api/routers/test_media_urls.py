"""Chats, embeddings and tokens with URLs of media: a gateway that fetches from a TLS server, over
real sockets. The server is on this machine, so its address is allowed here.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_frontend import lifespan
from openai_frontend.app import create_app
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState
from openai_frontend.media.fetch import is_public
from openai_frontend.triton import Options, Server
from tests import audio, images, mock_models
from tests.api.kserve.conftest import listening
from tests.medium.media.media_server import HOST, MediaServer, media_server, network, response

PNG = images.png(4, 5)
WAV = audio.wav(["one"])
CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": f"https://{HOST}/a.png?secret"}}
SOUND = {"type": "audio_url", "audio_url": {"url": f"https://{HOST}/a.wav"}}


@dataclass
class Running:
    """A gateway, and the server from which it fetches."""

    state: AppState
    client: httpx.AsyncClient
    media: MediaServer

    async def post(self, path: str, *parts: Any, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "a"}]}]
        body = {"model": "vision", "messages": messages, **fields}
        return await self.client.post(path, json=body)

    def fetches(self, result: str) -> float:
        """How many ended so, by the metrics."""
        name, labels = "openai_frontend_media_fetches_total", {"result": result}
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Running]:
    mock_models.write_with_media(folder / "models", "vision")
    server = Server(Options(model_repositories=[folder / "models"], exit_timeout_s=5))
    settings = Settings(
        model_repository=[folder / "models"], allowed_media_domains=[HOST], unknown_fields="reject"
    )
    async with media_server() as media:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lifespan, "internet", lambda: network(media.port, **options))
            app = create_app(settings, server)
        async with app.router.lifespan_context(app), listening(app) as url:
            while not app.state.registry.has_loaded():  # noqa: ASYNC110  a start has no event
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                yield Running(app.state.gateway, client, media)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, timeout_s=600) as started:
        yield started
        async with asyncio.timeout(60):
            while started.state.body_memory.used_bytes:  # noqa: ASYNC110  a task's end has no event
                await asyncio.sleep(0.005)


async def test_engine_gets_what_was_fetched(gateway: Running) -> None:
    """Complete and streamed, as the same data without a URL; the memory is given back."""
    gateway.media.answer = response(PNG)
    sent = await gateway.post(CHAT, images.part(PNG))
    fetched = await gateway.post(CHAT, IMAGE)

    answers = [each.json()["choices"][0]["message"]["content"] for each in (sent, fetched)]
    assert answers[0] == answers[1]
    assert "png 4x5" in answers[1]
    streamed = await gateway.post(CHAT, IMAGE, stream=True)
    chunks = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(each)["choices"][0]["delta"].get("content", "") for each in chunks]
    assert "".join(deltas) == answers[1]
    assert gateway.fetches("fetched") == 2


async def test_engine_gets_audio_that_was_fetched(gateway: Running) -> None:
    gateway.media.answer = response(WAV)

    answer = await gateway.post(CHAT, SOUND)

    assert answer.json()["choices"][0]["message"]["content"].startswith("wav ")


@pytest.mark.parametrize("path", ["/tokenize", f"{CHAT}/render", "/v1/embeddings"])
async def test_other_endpoints_fetch_too(gateway: Running, path: str) -> None:
    """Tokens are those of the chat, whose placeholders need the number and size of images."""
    gateway.media.answer = response(PNG)

    sent, fetched = await gateway.post(path, images.part(PNG)), await gateway.post(path, IMAGE)

    assert fetched.status_code == sent.status_code == 200
    results = [each.json() for each in (sent, fetched)]
    for each in results:
        each.pop("request_id", None)
    assert results[0] == results[1]


@pytest.mark.parametrize("path", [CHAT, "/tokenize", f"{CHAT}/render", "/v1/embeddings"])
async def test_failures_name_the_field(gateway: Running, path: str) -> None:
    gateway.media.answer = response(b"", "location: https://127.0.0.1/", status="302 Found")

    refused = await gateway.post(path, images.part(PNG), IMAGE)

    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (
        400,
        "messages[0].content[1].image_url.url",
        "invalid_image_url",
    )
    assert "could not be fetched" in error["message"]
    assert gateway.fetches("status") == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"stream": True}),
        (f"{CHAT}/render", {}),
        ("/tokenize", {}),
        ("/v1/embeddings", {}),
    ],
)
async def test_fetch_ends_if_the_client_disconnects(
    gateway: Running, path: str, fields: dict[str, Any]
) -> None:
    """Its connection closes long before the fetch would time out."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na")

    gateway.media.answer = answer
    asking = asyncio.create_task(gateway.post(path, IMAGE, **fields))
    while not gateway.media.requests:  # noqa: ASYNC110  the server has no event for it
        await asyncio.sleep(0.005)
    asking.cancel()

    async with asyncio.timeout(60):
        await gateway.media.closed.wait()
        while not gateway.fetches("aborted"):  # noqa: ASYNC110  a metric has no event
            await asyncio.sleep(0.005)
    assert (gateway.fetches("aborted"), len(gateway.media.requests)) == (1, 1)


async def test_private_address_is_not_dialled(tmp_path: Path) -> None:
    """With the addresses that are allowed in operation: the name resolves to this machine."""
    async with running(tmp_path, is_allowed=is_public) as gateway:
        gateway.media.answer = response(PNG)
        refused = await gateway.post(CHAT, IMAGE)

        assert refused.status_code == 400
        assert gateway.fetches("refused_address") == 1
        assert gateway.media.connections == 0
