"""Which processes a server consists of, and what each is for."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

FRONTEND = "frontend"
ENGINE = "engine"
SUPERVISOR = "supervisor"

_RUST = "vllm-rs"
_ENGINE_NAMES = ("EngineCore", "Worker")  # vLLM names its processes VLLM::EngineCore, ...


def tree(root: int) -> list[psutil.Process]:
    """A process and all that descend from it; the root comes first. Empty if it has ended."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def names(processes: Iterable[psutil.Process]) -> dict[int, str]:
    """Process id -> command line, which vLLM overwrites with a title."""
    found = {}
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found[each.pid] = " ".join(each.cmdline())
    return found


def roles(names: Mapping[int, str]) -> dict[str, list[int]]:
    """Process ids by role, of a tree whose root comes first.

    The engine's processes have its name. Where a vllm-rs is there, it is the frontend, and the
    Python process that started it only supervises. All others are the frontend, so that one with
    several processes pays for all of them.
    """
    root, *others = names
    rust = [pid for pid in others if Path(names[pid].partition(" ")[0]).name == _RUST]
    found: dict[str, list[int]] = {FRONTEND: [], ENGINE: [], SUPERVISOR: []}
    for pid in (root, *others):
        if any(name in names[pid] for name in _ENGINE_NAMES):
            found[ENGINE].append(pid)
        elif rust and pid not in rust:
            found[SUPERVISOR].append(pid)
        else:
            found[FRONTEND].append(pid)
    return found


def kill_left(processes: Iterable[psutil.Process]) -> None:
    """Kill those that still run; a process that reused an id is left alone."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


@contextlib.contextmanager
def paused(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop processes for a while; they go on however it ends."""
    stopped = []
    try:
        for each in processes:
            each.suspend()
            stopped.append(each)
        yield
    finally:
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
