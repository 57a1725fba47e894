"""Draws docs/images/top.svg: `openai-frontend top` while clients use the demo models.

It starts the server with vLLM on the demo models, which takes about two minutes.
"""

import asyncio
import io
import re
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from openai_frontend.cli.top.rates import compute_stats
from openai_frontend.cli.top.scrape import parse_address, scrape
from openai_frontend.cli.top.view import view
from tests import images, recordings
from tests.gateway_process import ROOT, GatewayProcess

IMAGE = ROOT / "docs" / "images" / "top.svg"
ADDRESS = "http://127.0.0.1:9000"  # the default; the server of this script has another port
STREAMS = 16
WARM_UP_S = 3
MEASURED_S = 8
WIDTH = 184  # columns: enough for every column of the table

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is Triton?"}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 200,
}
EMBEDDING = {"model": "demo-embedding", "input": ["a warm day", "sunny weather"]}
KNOWN = images.red_circle()
SPEECH = recordings.EXAMPLE.read_bytes()
PAUSE_S = 0.05


async def ask(client: httpx.AsyncClient) -> None:
    await _post(client, "chat/completions", json=CHAT)


async def embed(client: httpx.AsyncClient) -> None:
    await _post(client, "embeddings", json=EMBEDDING)
    await asyncio.sleep(PAUSE_S)


async def show(client: httpx.AsyncClient) -> None:
    """One new image and two that the server knows."""
    note = images.chunk(b"teXt", uuid.uuid4().bytes)
    sent = images.png(64, 64, before=note), KNOWN, KNOWN
    content = [*map(images.part, sent), images.text("Describe the picture.")]
    message = {"role": "user", "content": content}
    await _post(client, "chat/completions", json={"model": "demo-vision", "messages": [message]})
    await asyncio.sleep(PAUSE_S)


async def speak(client: httpx.AsyncClient) -> None:
    form: dict[str, Any] = {"files": {"file": SPEECH}, "data": {"model": "demo-speech"}}
    await _post(client, "audio/transcriptions", **form)
    await asyncio.sleep(PAUSE_S)


async def recorded(url: str) -> Console:
    """The view of the gateway under load."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as group:
        await asyncio.gather(show(client), speak(client))  # which load their models
        clients = [group.create_task(_repeat(client, ask)) for _ in range(STREAMS)]
        clients += [group.create_task(_repeat(client, each)) for each in (embed, show, speak)]
        address = parse_address(url)
        await asyncio.sleep(WARM_UP_S)
        earlier = await asyncio.to_thread(scrape, address)
        await asyncio.sleep(MEASURED_S)
        stats = compute_stats(earlier, await asyncio.to_thread(scrape, address))
        for task in clients:
            task.cancel()
    console = Console(
        record=True, width=WIDTH, markup=False, highlight=False, emoji=False, file=io.StringIO()
    )
    console.print(view(stats, ADDRESS, WIDTH))
    return console


async def _repeat(
    client: httpx.AsyncClient, request: Callable[[httpx.AsyncClient], Awaitable[None]]
) -> None:
    while True:
        await request(client)


async def _post(client: httpx.AsyncClient, path: str, **content: Any) -> None:
    (await client.post(f"/v1/{path}", **content)).raise_for_status()


def svg_format() -> str:
    """Rich's picture without its font, which a browser would load from another host."""
    own = re.sub(r"@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    own = re.sub(r"<!--.*?-->", "", own).replace("Fira Code, monospace", "monospace")
    return re.sub(r"\n\s*\n+", "\n", own)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        GatewayProcess(ROOT / "model_repository", Path(folder) / "log") as gateway,
    ):
        gateway.wait_until_ready(timeout_s=600)
        console = asyncio.run(recorded(gateway.url))
    title = "openai-frontend top"
    image = console.export_svg(title=title, code_format=svg_format(), unique_id="top")
    IMAGE.write_text(image, encoding="utf-8")


if __name__ == "__main__":
    main()
