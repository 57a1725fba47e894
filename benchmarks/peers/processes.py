"""Which processes a server consists of, what each is for, and their CPU time. Reads /proc."""

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import process_stat

FRONTEND = "frontend"
ENGINE = "engine"
SUPERVISOR = "supervisor"

_RUST = "vllm-rs"
_ENGINE_NAMES = ("EngineCore", "Worker")  # vLLM names its processes VLLM::EngineCore, ...


@dataclass(frozen=True, slots=True)
class Process:
    """One of a server's processes."""

    pid: int
    parent: int
    name: str  # its command line, which vLLM overwrites with a title


def tree(root: int) -> list[Process]:
    """A process and all that descend from it; the root comes first."""
    everything = _everything()
    found = [each for each in everything if each.pid == root]
    for process in found:  # grows while it is walked
        found += [each for each in everything if each.parent == process.pid]
    return found


def roles(processes: Iterable[Process]) -> dict[str, list[int]]:
    """Process ids by role, of a tree whose root comes first.

    The engine's processes have its name. Where a vllm-rs is there, it is the frontend, and the
    Python process that started it only supervises. All others are the frontend, so that one with
    several processes pays for all of them.
    """
    root, *others = processes
    rust = [each for each in others if Path(each.name.partition(" ")[0]).name == _RUST]
    found: dict[str, list[int]] = {FRONTEND: [], ENGINE: [], SUPERVISOR: []}
    for each in (root, *others):
        if any(name in each.name for name in _ENGINE_NAMES):
            found[ENGINE].append(each.pid)
        elif rust and each not in rust:
            found[SUPERVISOR].append(each.pid)
        else:
            found[FRONTEND].append(each.pid)
    return found


def cpu_s(by_role: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """User and system time by role so far, in seconds."""
    return {role: sum(map(process_stat.cpu_s, pids)) for role, pids in by_role.items()}


def parse_parent(stat: str) -> int:
    """The parent's id in /proc/<pid>/stat."""
    return int(stat.rpartition(")")[2].split()[1])


def _everything() -> list[Process]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = parse_parent((folder / "stat").read_text(errors="replace"))
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        found.append(Process(int(folder.name), parent, command.decode(errors="replace").strip()))
    return found


def kill_left(processes: Iterable[Process]) -> None:
    """Kill those of a tree that have outlived its root."""
    alive = {(each.pid, each.name) for each in _everything()}
    for each in processes:
        if (each.pid, each.name) in alive:  # the same name: its number was not given away again
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


@contextlib.contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes for a while; they go on however it ends."""
    stopped = []
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
