"""`make gpu-check`: whether the gateway and vLLM work on this machine's GPU, and how fast.

Needs no network and no model: the demo models and random weights are enough.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.client_process import ClientFailed
from benchmarks.peers.rounds import Result
from benchmarks.server_process import ServerFailed
from scripts.gpu_check import checks, report, throughput

OUT = Path("build")
NO_GPU = (
    "gpu-check: nvidia-smi reports no GPU, and an NVIDIA GPU is needed: install its driver, or run"
    " make gpu-check ARGS=--cpu for the checks on this machine's processor\n"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if every check passed, 1 if not, 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="scripts.gpu_check", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="check vLLM for CPUs instead")
    cpu = parser.parse_args(arguments).cpu
    device = "none (--cpu)" if cpu else gpu()
    if device is None:
        sys.stderr.write(NO_GPU)
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        folder = Path(name)
        done = list(checks.run(folder, cpu=cpu, say=say))
        measured: list[Result] = []
        begun = time.monotonic()
        try:
            for result in throughput.measure(folder / "throughput", cpu=cpu, say=say):
                measured.append(result)
        except (ClientFailed, ServerFailed) as error:
            done.append(checks.Check("throughput", False, time.monotonic() - begun, str(error)))
    document = report.document(device, done, measured, time.monotonic() - started)
    table = report.markdown(document)
    report.write(OUT, document, table)
    print(table)
    return 0 if report.passed(document) else 1


def gpu() -> str | None:
    """The first GPU's name, memory and driver; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = subprocess.run([program, *query], capture_output=True, text=True, check=False)
    lines = found.stdout.splitlines()
    return lines[0].strip() if found.returncode == 0 and lines else None


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
