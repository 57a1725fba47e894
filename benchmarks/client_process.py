"""Processes that measure and print what they found: the load client and others."""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.load import Load, Measured
from benchmarks.server_process import ROOT

MOST_CLIENT_SHARE = 0.80  # of its core; above it the client could be the limit
_LONGEST_S = 300.0


class ClientFailed(Exception):
    """A process that failed, and with it the run; the message is what it said."""


def measure(load: Load) -> Measured:
    """Runs one load in a client process."""
    return Measured.parse(output(["-m", "benchmarks.client"], stdin=load.dump()))


def output(arguments: Sequence[str], stdin: str = "") -> str:
    """What a Python process printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
    if done.returncode != 0:
        raise ClientFailed(f"{' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout
