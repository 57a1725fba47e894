"""Settings of whole processes: the memory that they keep, and the end of their parent."""

import ctypes
import os
import subprocess
import sys

import pytest

from openai_frontend.runtime.process_settings import keep_freed_memory

_PAGES = 3 * (8 << 20) // 4096  # of what `_PROGRAM` holds at a time
_PROGRAM = """
import ctypes, resource
from openai_frontend.runtime.process_settings import keep_freed_memory

def faults():
    pieces = [bytearray(8 << 20) for _ in range(3)]
    for piece in pieces:
        piece[::4096] = bytes(len(range(0, len(piece), 4096)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page would be one fault
keep_freed_memory()
faults()
print(-faults() + faults())
"""
_ENDED_BEFORE = """
import os, sys, time
from openai_frontend.runtime.process_settings import end_with

parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
end_with(parent)
os.write(int(sys.argv[1]), b"runs")
"""


@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        ({}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, False),
    ],
)
def test_freed_memory_is_kept(environment, kept):
    """The operator's own options take precedence."""
    ours = ("MALLOC_", "GLIBC_TUNABLES")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert (int(ended.stdout) < _PAGES / 10) == kept, ended.stdout


def test_other_c_libraries_are_left_alone(monkeypatch):
    """Such as musl, which has no mallopt."""
    asked: list[str] = []

    class Library:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())

    keep_freed_memory()

    assert asked == ["mallopt"]


def test_a_fork_ends_if_its_parent_ended_before():
    """It could not tell the kernel in time that it ends with its parent."""
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-c", _ENDED_BEFORE, str(write)], pass_fds=[write], check=True, timeout=300
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""
