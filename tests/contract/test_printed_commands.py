"""What `serve` prints when it is ready works as printed."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine


def test_the_curl_line_works(gateway):
    """The printed curl line streams or prints an answer."""
    line = next(line for line in gateway.output().splitlines() if line.strip().startswith("curl "))

    answer = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)  # noqa: S602  as a user pastes it

    assert '"content"' in answer.stdout


def test_the_python_snippet_works(gateway):
    """The printed three lines of Python print an answer."""
    snippet = re.search(r"^\s*from openai import OpenAI\n(?:.+\n){2}", gateway.output(), re.M)
    assert snippet is not None
    code = "\n".join(line.strip() for line in snippet[0].splitlines())

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )

    assert (answer.returncode, len(answer.stdout.strip()) > 10) == (0, True)
