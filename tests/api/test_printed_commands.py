"""The examples that `serve` prints when it is ready."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine


def test_curl_lines_work(gateway):
    """Each printed curl line prints an answer of its endpoint."""
    gateway.wait_for_line("print(")  # it may be ready before it prints them
    lines = [line for line in gateway.output().splitlines() if line.strip().startswith("curl ")]

    answers = [
        subprocess.run(line, shell=True, capture_output=True, text=True, timeout=600).stdout  # noqa: S602  as a user pastes it
        for line in lines
    ]

    parts = ('"content"', '"text"', '"embedding"', '"content"')  # the last about an image
    assert [part in answer for part, answer in zip(parts, answers, strict=True)] == [True] * 4


def test_python_snippet_works(gateway):
    """The printed Python lines print an answer of each endpoint."""
    gateway.wait_for_line("print(")
    snippet = re.search(r"^\s*from openai import OpenAI\n(?:.+\n){7}", gateway.output(), re.M)
    assert snippet is not None
    code = "\n".join(line.strip() for line in snippet[0].splitlines())

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
    )

    assert (answer.returncode, answer.stdout.strip().count("\n") >= 3) == (0, True)
