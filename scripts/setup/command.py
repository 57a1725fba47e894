"""Runs the steps whose stamps are stale; says nothing and changes nothing when none is."""

import argparse
import sys
import time
from pathlib import Path

from scripts.setup import preflight
from scripts.setup.install import Step, steps
from scripts.setup.progress import CommandFailed, Progress

ENGINES = ("cpu", "cuda", "none")


def main() -> int:
    stale = stale_steps(parse_engine())
    if not stale:
        return 0
    needed = sum(step.disk_bytes for step in stale)
    problem = preflight.first_problem(preflight.read_machine(Path.cwd()), needed)
    if problem:
        sys.stderr.write(f"setup: {problem}\n")
        return 1
    return run(stale)


def parse_engine() -> str:
    parser = argparse.ArgumentParser(prog="scripts.setup", description=__doc__)
    parser.add_argument("--vllm", choices=ENGINES, default="cpu", help="which vLLM to install")
    engine: str = parser.parse_args().vllm
    return engine


def stale_steps(engine: str) -> list[Step]:
    return [step for step in steps(engine) if not step.stamp.fresh]


def run(stale: list[Step]) -> int:
    progress, started = Progress(len(stale)), time.monotonic()
    for step in stale:
        step.stamp.clear()
        progress.begin(step.title)
        try:
            step.work(progress)
        except CommandFailed as error:
            progress.end("failed")
            sys.stderr.write(f"{error}\n")
            return 1
        step.stamp.write()
        progress.end()
    sys.stdout.write(f"Set up in {time.monotonic() - started:.0f} s.\n")
    return 0
