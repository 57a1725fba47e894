"""How the gateway's costs grow: the mock engine with 1, 50 and 200 models, 10 and 10,000 keys, 1
and 1,000 LoRA adapters.

`python -m benchmarks.growth [--store]` measures only this. Figures are of the server's process.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import client_process, machine, mock_repository, process_stat, results
from benchmarks.load import Load
from benchmarks.process_stat import Cores
from benchmarks.request import API_KEY, MODEL
from benchmarks.server_process import ServerProcess, gateway
from benchmarks.summary import Summary

_IDLE_S, _SETTLE_S = 30.0, 12.0  # by then memory has moved to huge pages
_ROUNDS = 3
_CONNECTIONS = 8
_GETS = 20
_WEIGHT = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
_RANK, _HIDDEN = 4, 8


@dataclass(frozen=True, slots=True)
class Size:
    """One server: how many it has of what grows."""

    title: str
    models: int = 1
    keys: int = 0  # 0: it needs none
    adapters: int = 0


SIZES = (
    Size("1 model"),
    Size("50 models", models=50),
    Size("200 models", models=200),
    Size("10 keys", keys=10),
    Size("10,000 keys", keys=10_000),
    Size("1 adapter", adapters=1),
    Size("1,000 adapters", adapters=1_000),
)

COLUMNS: Mapping[str, str] = {
    "start_s": "ready after, s",
    "us_per_request": "1 token, us",
    "idle_ms_per_s": "idle, ms/s",
    "resident_mb": "resident, MB",
    "threads": "threads",
    "metrics_ms": "`/metrics`, ms",
    "models_ms": "`/v1/models`, ms",
}


def write(folder: Path, size: Size) -> Sequence[str]:
    """The repository in `folder / "models"`; returns the options of the server."""
    repository = folder / "models"
    tokenizer = mock_repository.write_tokenizer(folder / "tokenizer")
    arguments: dict[str, Any] = {"tokenizer": str(tokenizer)}
    if size.adapters:
        arguments["max_lora_rank"] = 16
    for number in range(size.models):
        name = MODEL if number == 0 else f"{MODEL}-{number}"
        mock_repository.write_model(repository / name, mock_repository.MOCK, arguments)
    for number in range(size.adapters):
        _write_adapter(repository / MODEL / "adapters" / f"adapter-{number}")
    if size.adapters:
        (repository / MODEL / "openai_frontend.yaml").write_text("adapter_folder: adapters\n")
    return [f"--keys-file={_write_keys(folder / 'keys.json', size.keys)}"] if size.keys else []


def _write_keys(path: Path, count: int) -> Path:
    secrets = [API_KEY, *(f"{API_KEY}-{number}" for number in range(1, count))]
    keys = [
        {
            "name": f"key-{number}",
            "sha256": hashlib.sha256(secret.encode()).hexdigest(),
            "scopes": ["inference", "models", "metrics"],
        }
        for number, secret in enumerate(secrets)
    ]
    path.write_text(json.dumps({"keys": keys}))
    return path


def _write_adapter(folder: Path) -> None:
    """PEFT's two files, with one tensor of zeros."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    size = 4 * _RANK * _HIDDEN
    tensor = {"dtype": "F32", "shape": [_RANK, _HIDDEN], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, _WEIGHT: tensor}).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(size)
    (folder / "adapter_model.safetensors").write_bytes(weights)


def measure(size: Size, cores: Cores, idle_s: float = _IDLE_S) -> dict[str, float]:
    """The figures of one server, by `COLUMNS`."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        options = write(Path(folder), size)
        with gateway(Path(folder) / "models", cores.server, options=options) as server:
            return {"start_s": server.start_up_s, **_figures(server, cores.client, idle_s)}


def _figures(server: ServerProcess, client_core: int | None, idle_s: float) -> dict[str, float]:
    # Before the load: what a request leaves behind is not idle work
    time.sleep(_SETTLE_S)
    idle = process_stat.cpu_share(server.pid, idle_s)
    load = Load(
        port=server.port,
        pids={"server": [server.pid]},
        connections=_CONNECTIONS,
        stream=False,
        tokens=(1, 1),
        warm_up_s=1.0,
        measured_s=3.0,
        core=client_core,
    )
    measured = client_process.measure(load)
    return {
        "us_per_request": measured.cpu_s["server"] / measured.responses * 1e6,
        "idle_ms_per_s": idle * 1e3,
        "resident_mb": process_stat.resident_bytes(server.pid) / 1e6,
        "threads": len(process_stat.wake_ups(server.pid)),
        "metrics_ms": _cpu_ms(server, "/metrics"),
        "models_ms": _cpu_ms(server, "/v1/models"),
    }


def _cpu_ms(server: ServerProcess, path: str) -> float:
    """CPU time of one GET."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:

        def get() -> None:
            connection.request("GET", path, headers={"authorization": f"Bearer {API_KEY}"})
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise RuntimeError(f"{path} was answered with {response.status}")

        return _repeated(server.pid, get)


def _repeated(pid: int, call: Callable[[], None]) -> float:
    call()
    before_s = process_stat.cpu_s(pid)
    for _ in range(_GETS):
        call()
    return (process_stat.cpu_s(pid) - before_s) / _GETS * 1e3


def rounds(count: int, sizes: Sequence[Size] = SIZES) -> Iterator[Mapping[str, dict[str, float]]]:
    """The figures of each round, by the size's title."""
    cores = Cores.available()
    for _ in range(count):
        yield {size.title: measure(size, cores) for size in sizes}


def table(found: Mapping[str, Mapping[str, Summary]]) -> str:
    """Markdown, under what it holds for."""
    about = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    head = [
        "# Growth",
        "",
        f"`python -m benchmarks.growth --store`, commit {machine.commit()}, {about}. Mock engine, "
        f"medians of {_ROUNDS} rounds. Figures are CPU time but for the start, the resident memory "
        f"and the threads; idle is the mean of {_IDLE_S:.0f} s.",
        "",
        "| | " + " | ".join(COLUMNS.values()) + " |",
        "|---" + "|--:" * len(COLUMNS) + "|",
    ]
    rows = [
        f"| {title} | " + " | ".join(f"{figures[name].median:,.4g}" for name in COLUMNS) + " |"
        for title, figures in found.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--store", action="store_true", help="write JSON and table to results")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    each = list(rounds(arguments.rounds))
    found = {
        title: {name: Summary.of([one[title][name] for one in each]) for name in COLUMNS}
        for title in each[0]
    }
    text = table(found)
    print(text)
    if arguments.store:
        figures = {
            title: {name: one.median for name, one in row.items()} for title, row in found.items()
        }
        results.store(results.FOLDER, "growth", figures, text)


if __name__ == "__main__":
    main()
