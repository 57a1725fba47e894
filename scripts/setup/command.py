"""Runs the steps whose stamps are stale. Without stale steps, prints and changes nothing."""

import argparse
import sys
import time
from pathlib import Path

from scripts.setup import clients, no_wheel, npm, preflight
from scripts.setup.install import Step, steps
from scripts.setup.progress import CommandFailed, Progress
from scripts.setup.stand_ins import STAND_INS

ENGINES = ("cpu", "cuda", "none")
LOCKED_VLLM = STAND_INS["vllm"].partition("+")[0]
UNKNOWN_VLLM = (
    "VLLM={} is not known; cpu, cuda or none is needed: the locks have vLLM {},"
    " for processors (cpu) or NVIDIA GPUs (cuda)"
)
TOOLS = (
    "browser",
    "build",
    "deploy",
    "docs",
    "fuzz",
    "node",
    "protoc",
    "speech",
    "supply",
    "wheels",
)  # the locks of requirements/tools


def main() -> int:
    arguments = parse_arguments()
    if arguments.vllm not in ENGINES:
        sys.stderr.write(f"setup: {UNKNOWN_VLLM.format(arguments.vllm, LOCKED_VLLM)}\n")
        return 2
    wanted = _wanted(arguments)
    stale = [step for step in wanted if not step.stamp.fresh]
    if not stale:
        return 0
    needed = sum(step.disk_bytes for step in stale)
    apart = arguments.tool is not None or arguments.npm is not None
    checks = preflight.TOOL_CHECKS if apart else preflight.CHECKS
    problem = preflight.first_problem(preflight.read_machine(Path.cwd()), needed, checks)
    if problem:
        sys.stderr.write(f"setup: {problem}\n")
        return 1
    return run(stale)


def _wanted(arguments: argparse.Namespace) -> list[Step]:
    if arguments.tool is not None:
        return clients.tool_steps(arguments.tool)
    if arguments.npm is not None:
        return npm.steps(arguments.npm)
    return clients.steps() if arguments.clients else steps(arguments.vllm)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts.setup", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--vllm", default="cpu", metavar="|".join(ENGINES), help="which vLLM to install"
    )
    what.add_argument(
        "--clients", action="store_true", help="the clients' environments instead, for the tests"
    )
    what.add_argument("--tool", choices=TOOLS, help="the environment of a developers' tool instead")
    what.add_argument("--npm", choices=npm.NPM_BYTES, help="programs from npm instead, for tests")
    return parser.parse_args()


def run(stale: list[Step]) -> int:
    progress, started = Progress(len(stale)), time.monotonic()
    for step in stale:
        step.stamp.clear()
        progress.begin(step.title)
        try:
            step.work(progress)
        except CommandFailed as error:
            progress.end("failed")
            line = no_wheel.explained(str(error))
            sys.stderr.write(f"setup: {line}\n" if line else f"{error}\n")
            return 1
        step.stamp.write()
        progress.end()
    sys.stdout.write(f"Set up in {time.monotonic() - started:.0f} s.\n")
    return 0
