"""Forks of the processes that decode media and try grammars."""

import os
import subprocess
import sys

_ENDED_BEFORE = """
import os, sys, time
from openai_frontend.media.fork_server import end_with

parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
end_with(parent)
os.write(int(sys.argv[1]), b"runs")
"""


def test_a_fork_ends_if_its_parent_ended_before():
    """It could not tell the kernel in time that it ends with its parent."""
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-c", _ENDED_BEFORE, str(write)], pass_fds=[write], check=True, timeout=60
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""
