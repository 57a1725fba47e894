"""Draws docs/images/top.svg: `openai-frontend top` while clients use both demo models.

It starts the server with vLLM on the demo models, which takes about a minute.
"""

import asyncio
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import httpx
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from openai_frontend.cli.top.rates import compute_stats
from openai_frontend.cli.top.scrape import parse_address, scrape
from openai_frontend.cli.top.view import view
from tests.gateway_process import ROOT, GatewayProcess

IMAGE = ROOT / "docs" / "images" / "top.svg"
ADDRESS = "http://127.0.0.1:9000"  # the default; the server of this script has another port
STREAMS = 16
WARM_UP_S = 3
MEASURED_S = 8
WIDTH = 120  # columns: enough for every column of the table

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is Triton?"}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 200,
}
EMBEDDING = {"model": "demo-embedding", "input": ["a warm day", "sunny weather"]}


async def recorded(url: str) -> Console:
    """The view of the gateway under load."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, asyncio.TaskGroup() as group:
        loads = [("chat/completions", CHAT, 0.0)] * STREAMS + [("embeddings", EMBEDDING, 0.05)]
        clients = [group.create_task(_repeat(client, *load)) for load in loads]
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


async def _repeat(client: httpx.AsyncClient, path: str, body: Any, pause_s: float) -> None:
    while True:
        response = await client.post(f"/v1/{path}", json=body)
        response.raise_for_status()
        await asyncio.sleep(pause_s)


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
