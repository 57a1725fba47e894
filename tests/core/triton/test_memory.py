"""Memory over many requests: OPENAI_FRONTEND_MEMORY_REQUESTS=100000 for the long run (a minute)."""

import os
import subprocess
import sys

import pytest

from tests.gateway_process import ROOT

pytestmark = pytest.mark.skipif(
    "ASAN_OPTIONS" in os.environ, reason="AddressSanitizer keeps freed memory for a while"
)

MIB = 1024 * 1024
REQUESTS = os.environ.get("OPENAI_FRONTEND_MEMORY_REQUESTS", "5000")


def growth(kind: str) -> int:
    """The bytes by which a fresh process grows in the second half of the requests."""
    command = [sys.executable, "-m", "tests.core.triton.memory_growth", REQUESTS, kind]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return int(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow():
    """The second half of the requests needs no more memory than the first."""
    assert growth("none") < 10 * MIB


@pytest.mark.slow
def test_leak_is_detected():
    """Responses that are kept make the process grow, so the check above works."""
    assert growth("leak") > 10 * MIB
