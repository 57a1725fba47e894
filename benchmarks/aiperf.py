"""aiperf as an outside witness: the same load, driven once by a client that is not ours."""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.load import Load
from benchmarks.metric import Metric
from benchmarks.server_process import ROOT

PROGRAM = ROOT / ".venv" / "clients" / "aiperf" / "bin" / "aiperf"
_LONGEST_S = 300.0
_PROMPT_TOKENS = 20
_ENDPOINTS = {
    "chat": "chat",
    "question": "chat",
    "completion": "completions",
    "embeddings_float": "embeddings",
}
# Our metric -> where aiperf's export has it
_EXPORTED = {
    "requests_per_s": ("request_throughput", "avg"),
    "tokens_per_s": ("output_token_throughput", "avg"),
    "ttft_p50_ms": ("time_to_first_token", "p50"),
    "ttft_p99_ms": ("time_to_first_token", "p99"),
    "latency_p50_ms": ("request_latency", "p50"),
    "latency_p99_ms": ("request_latency", "p99"),
}


class NoWitness(Exception):
    """aiperf cannot express the load, or did not measure it; the message says why."""


def is_requested(given: argparse.Namespace) -> bool:
    """Whether to run aiperf: by default only for results that are stored."""
    choice: bool | None = given.aiperf
    return bool(given.store) if choice is None else choice


def missing() -> str | None:
    """The reason why aiperf cannot run; None if it is installed."""
    return None if PROGRAM.is_file() else "aiperf is not installed: run `make setup-clients`"


def measure(load: Load, tokenizer: Path, metrics: Iterable[Metric]) -> dict[str, float]:
    """Those of the metrics that aiperf has too. Raises NoWitness."""
    names = [metric.name for metric in metrics if metric.name in _EXPORTED]
    if not names:
        raise NoWitness("aiperf has none of its figures")
    with tempfile.TemporaryDirectory(prefix="aiperf-") as folder:
        run([*command(load, tokenizer), f"--output-artifact-dir={folder}"])
        [export] = Path(folder).rglob("profile_export_aiperf.json")
        found = json.loads(export.read_text(encoding="utf-8"))
    if found["error_summary"]:
        raise NoWitness(f"aiperf got errors: {found['error_summary']}")
    return {name: found[field][share] for name in names for field, share in [_EXPORTED[name]]}


def command(load: Load, tokenizer: Path) -> list[str]:
    """The load as options of aiperf. Raises NoWitness if it has none for it."""
    reason = _inexpressible(load)
    if reason is not None:
        raise NoWitness(f"aiperf cannot express {reason}")
    low, high = load.tokens
    rate = [f"--request-rate={load.rate_per_s}", "--request-rate-mode=constant"]
    options = [
        f"--url=http://127.0.0.1:{load.port}",
        f"--model={load.model}",
        f"--endpoint-type={_ENDPOINTS[load.kind]}",
        f"--tokenizer={tokenizer}",
        f"--benchmark-duration={load.measured_s}",
        f"--synthetic-input-tokens-mean={_PROMPT_TOKENS}",
        *(rate if load.rate_per_s else [f"--concurrency={load.connections}"]),
    ]
    if load.kind == "embeddings_float":
        options += [f"--batch-size-text={load.inputs}"]
    else:
        # Its lengths are normally distributed: with the same mean and deviation as our even ones
        options += [f"--output-tokens-mean={(low + high) / 2:g}", "--use-server-token-count"]
        options += [f"--output-tokens-stddev={(high - low) / 12**0.5:.1f}"]
        options += ["--streaming"] if load.stream else []
    if load.kind == "question":
        options += ["--extra-inputs=ignore_eos:true", "--extra-inputs=temperature:0"]
    quiet = ["--ui=none", "--no-gpu-telemetry", "--no-server-metrics"]
    return [str(PROGRAM), "profile", *options, *quiet]


def _inexpressible(load: Load) -> str | None:
    reasons = {
        f"requests of the kind {load.kind}": load.kind not in _ENDPOINTS,
        "idle streams beside the load": load.idle > 0,
        "probes beside the load": load.probes_per_s > 0,
        "streams that do not end": not load.drain,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def run(arguments: list[str], longest_s: float = _LONGEST_S) -> None:
    """Raises NoWitness if it fails or takes longer."""
    path = os.pathsep.join([str(PROGRAM.parent), os.environ.get("PATH", "")])
    # Offline it treats the tokenizer's folder as a name on the hub
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": ""}
    try:
        done = subprocess.run(
            arguments,
            env=environment,
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoWitness(f"aiperf did not end within {longest_s:.0f} s") from None
    if done.returncode:
        raise NoWitness(f"aiperf ended with {done.returncode}: {done.stderr.strip()[-500:]}")
