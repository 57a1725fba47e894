"""Memory that a request has freed serves the next one, unless the operator says otherwise."""

import os
import subprocess
import sys

import pytest

from openai_frontend import malloc

_PAGES = 3 * (8 << 20) // 4096  # of what `_PROGRAM` holds at a time
_PROGRAM = """
import resource
from openai_frontend.malloc import keep_freed_memory

def faults():
    pieces = [bytearray(8 << 20) for _ in range(3)]
    for piece in pieces:
        piece[::4096] = bytes(len(range(0, len(piece), 4096)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
faults()
print(-faults() + faults())
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
    inherited = {name: value for name, value in os.environ.items() if "MALLOC_" not in name}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert (int(ended.stdout) < _PAGES / 10) == kept, ended.stdout


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())

    malloc.keep_freed_memory()
