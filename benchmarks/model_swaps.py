"""Models that take turns in a memory budget, with the mock engine: two by aiperf, fifty by Zipf.

`python -m benchmarks.model_swaps [--store]` measures only this.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks import aiperf, machine, mock_repository, process_stat, results
from benchmarks.process_stat import Cores
from benchmarks.server_process import ServerProcess, gateway
from benchmarks.summary import percentile

_MEGABYTE = 10**6
_SLEEP_S, _WAKE_S, _LOAD_S = 0.05, 0.1, 0.2  # the engine's own
_MODELS, _FIT, _CLIENTS = 50, 5, 4
_IDLE_S, _SETTLE_S = 30.0, 12.0  # by then memory has moved to huge pages
_POLL_S = 0.1
_ON_DEMAND = ("--model-control-mode=explicit", "--load-on-demand")

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "alternate": {
        "requests": "requests",
        "lost": "lost",
        "wakes": "wakes",
        "wake_ms": "wake, mean, ms",
        "wake_ratio": "wake / engine's own",
        "latency_p50_ms": "latency p50, ms",
        "latency_ratio": "latency besides the engine's sleep and wake, as a share of them",
    },
    "zipf": {
        "requests": "requests",
        "lost": "lost",
        "loads": "loads",
        "most_loaded": "most models loaded",
        "over_budget": "samples over the budget",
        "latency_p99_ms": "latency p99, ms",
        "growth_mb": "growth of resident memory in the second half, MB",
        "idle_percent": "idle afterwards, % of a core",
    },
}


def write(folder: Path, names: Sequence[str], **arguments: Any) -> Path:
    """Models of 100 MB, by their option; returns the repository."""
    tokenizer = mock_repository.write_tokenizer(folder / "tokenizer")
    for name in names:
        model = folder / "models" / name
        mock_repository.write_model(
            model, mock_repository.MOCK, {"tokenizer": str(tokenizer), **arguments}
        )
        options = f"memory_bytes: {100 * _MEGABYTE}\n"
        if "wake_s" in arguments:
            options += "idle_sleep_s: 3600\n"  # it may sleep to make room
        (model / "openai_frontend.yaml").write_text(options)
    return folder / "models"


def alternate(requests: int, cores: Cores) -> dict[str, float]:
    """Every request of aiperf's only client is for the other model, of which one fits awake."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
        folder = Path(name)
        engine = {"sleep_s": _SLEEP_S, "wake_s": _WAKE_S, "sleep_frees_bytes": 90 * _MEGABYTE}
        repository = write(folder, ["left", "right"], answer_tokens=4, **engine)
        options = [*_ON_DEMAND, f"--max-model-memory-bytes={150 * _MEGABYTE}"]
        with gateway(repository, cores.server, options=options) as server:
            for model in ("left", "right"):  # loads both
                _ask_once(server, model)
            before = _wakes(server)
            found = _by_aiperf(folder, server, requests)
            count, seconds = (now - then for now, then in zip(_wakes(server), before, strict=True))
    own_s = _SLEEP_S + _WAKE_S
    return {
        **found,
        "wakes": count,
        "wake_ms": seconds / count * 1e3,
        "wake_ratio": seconds / count / _WAKE_S,
        "latency_ratio": found["latency_p50_ms"] / 1e3 / own_s - 1,
    }


def _by_aiperf(folder: Path, server: ServerProcess, requests: int) -> dict[str, float]:
    """Raises NoWitness if aiperf is not installed or fails."""
    reason = aiperf.missing()
    if reason is not None:
        raise aiperf.NoWitness(reason)
    options = [
        f"--url=http://127.0.0.1:{server.port}", "--model=left,right",
        "--model-selection-strategy=round_robin", "--endpoint-type=chat", "--streaming",
        f"--tokenizer={folder / 'tokenizer'}", "--synthetic-input-tokens-mean=20",
        "--output-tokens-mean=4", "--concurrency=1", f"--request-count={requests}",
        "--use-server-token-count", f"--output-artifact-dir={folder / 'aiperf'}",
        "--ui=none", "--no-gpu-telemetry", "--no-server-metrics",
    ]  # fmt: skip
    aiperf.run([str(aiperf.PROGRAM), "profile", *options], longest_s=60 + requests)
    [export] = (folder / "aiperf").rglob("profile_export_aiperf.json")
    found = json.loads(export.read_text(encoding="utf-8"))
    done = found["request_count"]["avg"]
    return {
        "requests": done,
        "lost": requests - done + sum(each["count"] for each in found["error_summary"]),
        "latency_p50_ms": found["request_latency"]["p50"],
    }


def _ask_once(server: ServerProcess, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    httpx.post(url, json=body, timeout=60).raise_for_status()


def _wakes(server: ServerProcess) -> tuple[float, float]:
    """The number of wakes, and their seconds, of all models."""
    text = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=60).text
    pattern = r"^openai_frontend_model_wake_seconds_{}\S* (\S+)$"
    count, total = (
        sum(map(float, re.findall(pattern.format(each), text, re.MULTILINE)))
        for each in ("count", "sum")
    )
    return count, total


def zipf(duration_s: float, cores: Cores, seed: int = 1) -> dict[str, float]:
    """Four clients ask for the models of a rank with the probability 1 / rank."""
    names = [f"model-{number}" for number in range(_MODELS)]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        repository = write(Path(folder), names, answer_tokens=8, load_s=_LOAD_S)
        budget = _FIT * 100 * _MEGABYTE
        options = [*_ON_DEMAND, f"--max-model-memory-bytes={budget}"]
        with gateway(repository, cores.server, options=options) as server:
            load = _ZipfLoad(server, names, random.Random(seed))
            asyncio.run(load.run(duration_s))
            return {**load.figures(), "idle_percent": _idle_percent(server)}


class _ZipfLoad:
    """Clients, and a watch over the loaded models."""

    def __init__(self, server: ServerProcess, names: Sequence[str], source: random.Random) -> None:
        self._server, self._names, self._random = server, names, source
        self._weights = [1 / rank for rank in range(1, len(names) + 1)]
        self._latencies_s: list[float] = []
        self._lost: list[str] = []
        self._loaded: list[int] = []
        self._memory: list[int] = []
        self._known: frozenset[str] = frozenset()
        self._loads = 0

    async def run(self, duration_s: float) -> None:
        url = f"http://127.0.0.1:{self._server.port}"
        end_s = time.monotonic() + duration_s
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            watch = asyncio.create_task(self._watch(client))
            await asyncio.gather(*(self._ask(client, end_s) for _ in range(_CLIENTS)))
            watch.cancel()

    async def _ask(self, client: httpx.AsyncClient, end_s: float) -> None:
        while time.monotonic() < end_s:
            [model] = self._random.choices(self._names, self._weights)
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            began_s = time.monotonic()
            response = await client.post("/v1/chat/completions", json=body)
            self._latencies_s.append(time.monotonic() - began_s)
            if response.status_code != 200 or response.json()["usage"]["completion_tokens"] != 8:
                self._lost.append(response.text)

    async def _watch(self, client: httpx.AsyncClient) -> None:
        while True:
            models = (await client.get("/v1/models")).json()["data"]
            states = ("loaded", "loading")
            loaded = frozenset(each["id"] for each in models if each["status"]["value"] in states)
            self._loads += len(loaded - self._known)
            self._known = loaded
            self._loaded.append(len(loaded))
            self._memory.append(process_stat.resident_bytes(self._server.pid))
            await asyncio.sleep(_POLL_S)

    def figures(self) -> dict[str, float]:
        """Loads between two samples are not seen."""
        if self._lost:
            print(f"lost: {self._lost[0]}")
        half = self._memory[len(self._memory) // 2 :]
        return {
            "requests": len(self._latencies_s),
            "lost": len(self._lost),
            "loads": self._loads,
            "most_loaded": max(self._loaded),
            "over_budget": sum(count > _FIT for count in self._loaded),
            "latency_p99_ms": percentile(self._latencies_s, 99) * 1e3,
            "growth_mb": (half[-1] - half[0]) / 1e6,
        }


def _idle_percent(server: ServerProcess) -> float:
    time.sleep(_SETTLE_S)
    return process_stat.cpu_share(server.pid, _IDLE_S) * 100


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown, under what it holds for."""
    about = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    lines = [f"# Models in a memory budget\n\nCommit {machine.commit()}, {about}. Mock engine.\n"]
    for title, figures in found.items():
        lines += [f"## {title}\n", "| figure | value |\n|---|--:|"]
        lines += [f"| {text} | {figures[name]:,.4g} |" for name, text in COLUMNS[title].items()]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.model_swaps", description=__doc__)
    parser.add_argument("--store", action="store_true", help="write JSON and table to results")
    parser.add_argument("--requests", type=int, default=1000, help="of the alternation")
    parser.add_argument("--minutes", type=float, default=3, help="of Zipf's requests")
    arguments = parser.parse_args()
    cores = Cores.available()
    found = {
        "alternate": alternate(arguments.requests, cores),
        "zipf": zipf(arguments.minutes * 60, cores),
    }
    text = table(found)
    print(text)
    if arguments.store:
        results.store(results.FOLDER, "model_swaps", found, text)


if __name__ == "__main__":
    main()
