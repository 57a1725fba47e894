"""Records scripts/dashboard_series.json: the panels of the dashboard, as Prometheus answers them
about a server under load. Needs Debian's `prometheus` on the path and vLLM; takes eight minutes.

The models are demo-vision in vLLM, and scripted ones for the rest: conversations, a queue that
overflows, and transcriptions.
"""

import asyncio
import json
import math
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from scripts.generate_dashboard_image import DASHBOARD, SERIES
from tests import audio, images, mock_models
from tests.gateway_process import ROOT, GatewayProcess
from tests.ports import free_port

SCRAPE_S, STEP_S, RECORDED_S = 2, 10, 360
VARIABLES = {"$instance": ".*", "$model": ".*", "$__rate_interval": f"{2 * STEP_S}s"}
# Of the dashboard's time; the load grows, falls and bursts, so that plots have shapes
PERIOD_S = 120

Request = Callable[[httpx.AsyncClient], Awaitable[None]]


def write_models(folder: Path) -> None:
    shutil.copytree(ROOT / "model_repository" / "demo-vision", folder / "demo-vision")
    blocks = {"prefix_cache_blocks": 400, "prefill_tokens_per_second": 2000}
    talker = {"tokens_per_second": 40, "first_token_delay_s": 0.1, **blocks}
    mock_models.write_with_tokenizer(folder, "llama", answer_tokens=120, **talker)
    mock_models.write_with_tokenizer(folder, "small", answer_tokens=40, tokens_per_second=80)
    mock_models.write_with_tokenizer(folder, "whisper", audio_window_s=30, answer_tokens=20)
    limits = "max_concurrent_requests: 6\nmax_queue_size: 8\n"
    (folder / "small" / "openai_frontend.yaml").write_text(limits)


def chat(model: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


async def ask(client: httpx.AsyncClient) -> None:
    """A conversation, whose later turns are in the prefix cache; one in twenty clients leaves."""
    conversation = "Explain Triton. " * 20
    for turn in range(3):
        conversation += f"{uuid.uuid4()} "
        timeout = 0.5 if uuid.uuid4().int % 20 == 0 else 60
        body = chat("llama", conversation, stream=True, max_tokens=60 + 30 * turn)
        try:
            await client.post("/v1/chat/completions", json=body, timeout=timeout)
        except httpx.TimeoutException:
            return


async def burst(client: httpx.AsyncClient) -> None:
    """More requests than the queue of the model takes."""
    bodies = [chat("small", "hi", max_tokens=40) for _ in range(2 + uuid.uuid4().int % 18)]
    await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
    await asyncio.sleep(1)


async def show(client: httpx.AsyncClient) -> None:
    """A new image and one that the server knows."""
    note = images.chunk(b"teXt", uuid.uuid4().bytes)
    sent = images.png(64, 64, before=note), images.red_circle()
    content = [*map(images.part, sent), images.text("Describe the picture.")]
    await client.post("/v1/chat/completions", json=chat("demo-vision", content, max_tokens=20))


async def hear(client: httpx.AsyncClient) -> None:
    file = audio.wav(["one", "two", "three"] * 5)
    upload, fields = {"file": ("speech.wav", file)}, {"model": "whisper"}
    await client.post("/v1/audio/transcriptions", files=upload, data=fields)
    await asyncio.sleep(0.3)


async def mistake(client: httpx.AsyncClient) -> None:
    await client.post("/v1/chat/completions", json={"model": "llama"})
    await asyncio.sleep(2)


async def load(url: str) -> None:
    """Clients come and go in waves; at most 12 have conversations."""
    began_s = time.monotonic()
    limits = httpx.Limits(max_connections=200)

    async def repeat(client: httpx.AsyncClient, request: Request, phase: float) -> None:
        while (elapsed_s := time.monotonic() - began_s) < RECORDED_S:
            if math.sin(2 * math.pi * elapsed_s / PERIOD_S) > phase:
                await request(client)
            else:
                await asyncio.sleep(1)

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        clients = [repeat(client, ask, index / 6 - 1) for index in range(12)]
        clients += [repeat(client, each, -2) for each in (burst, show, hear, mistake)]
        await asyncio.gather(*clients)


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """The address of a Prometheus that scrapes a port of this machine."""
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {"job_name": "gateway", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def series(url: str, panel: dict[str, Any], end_s: float) -> list[dict[str, Any]]:
    """The lines of a panel: legend and values, null where there is none."""
    lines = []
    steps = RECORDED_S // STEP_S
    times = [end_s - STEP_S * (steps - 1 - at) for at in range(steps)]
    for target in panel["targets"]:
        query = target["expr"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        asked = {"query": query, "start": times[0], "end": times[-1], "step": STEP_S}
        answer = httpx.get(f"{url}/api/v1/query_range", params=asked).raise_for_status().json()
        for each in answer["data"]["result"]:
            found = {round(at - times[0]): float(value) for at, value in each["values"]}
            values = [rounded(found.get(STEP_S * at, math.nan)) for at in range(steps)]
            lines.append({"label": legend(target, each["metric"]), "values": values})
    return lines


def rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    """Grafana's legend; the instance is the address in the documentation."""
    known = {**labels, "instance": "127.0.0.1:9000"}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: known[match[1]], target.get("legendFormat", ""))


def main() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "models").mkdir()
        write_models(folder / "models")
        with GatewayProcess(folder / "models", folder / "log") as gateway:
            gateway.wait_until_ready(timeout_s=600)
            with prometheus(folder, gateway.port) as url:
                asyncio.run(load(gateway.url))
                end_s = time.time()
                lines = {
                    panel["title"]: series(url, panel, end_s)
                    for panel in panels
                    if panel["type"] != "row"
                }
    text = json.dumps(lines, separators=(",", ":")).replace('],"', '],\n"').replace("}],", "}],\n")
    SERIES.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
