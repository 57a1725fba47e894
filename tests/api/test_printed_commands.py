"""The examples that `serve` prints when it is ready."""

import subprocess
import sys

import pytest

from tests.printed_examples import curl_commands, python_code

pytestmark = pytest.mark.engine


def test_curl_lines_work(gateway):
    """Each printed curl line prints an answer of its endpoint."""
    gateway.wait_for_line("print(")  # it may be ready before it prints them
    answers = [
        subprocess.run(line, shell=True, capture_output=True, text=True, timeout=600).stdout  # noqa: S602  as a user pastes it
        for line in curl_commands(gateway.output())
    ]

    parts = ('"content"', '"text"', '"embedding"', '"content"')  # the last about an image
    assert [part in answer for part, answer in zip(parts, answers, strict=True)] == [True] * 4


def test_python_snippet_works(gateway):
    """The printed Python lines print an answer of each endpoint."""
    gateway.wait_for_line("print(")
    code = python_code(gateway.output())

    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
    )

    assert (answer.returncode, answer.stdout.strip().count("\n") >= 3) == (0, True)
