"""Core callbacks without memory: the request fails, the process and other requests continue."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_process import ROOT

pytestmark = pytest.mark.skipif(
    "ASAN_OPTIONS" in os.environ, reason="AddressSanitizer has its own operator new"
)

TEXT = "a text that is longer than what a string of C++ holds in itself"
LOST = "no memory for a response"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How requests end if another allocation of the extension fails each time."""
    library = tmp_path_factory.mktemp("library") / "failing_allocations.so"
    source = Path(__file__).with_name("failing_allocations.cc")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *options, "-o", library, source, "-ldl"], check=True)  # noqa: S607  the machine's own
    command = [sys.executable, "-m", "tests.core.triton.short_of_memory", os.fspath(library)]
    environment = {**os.environ, "LD_PRELOAD": os.fspath(library)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_response_without_memory_ends_its_stream(outcome):
    """A response is complete, or its stream ends with an error that gives the reason."""
    *failed, whole = outcome["ends"]["response"]

    assert whole == TEXT
    assert any(LOST in end for end in failed)
    assert all(end == "" or TEXT in end or LOST in end for end in failed)


def test_text_without_memory_is_not_relayed_in_part(outcome):
    """Relayed text is complete, or the stream ends with an error."""
    *failed, whole = outcome["ends"]["relayed"]

    assert whole == TEXT
    assert failed
    assert all(TEXT in end or LOST in end for end in failed)


def test_stream_without_memory_leaves_the_others(outcome):
    """If one stream's text cannot be written, the same wake-up writes the others'."""
    *failed, whole = outcome["ends"]["drained"]

    assert whole == f"{TEXT} {TEXT}"
    assert {f"none {TEXT}", f"{TEXT} none"} <= set(failed)
    assert "none none" not in failed


def test_request_without_memory_is_refused(outcome):
    """A request for which the backend has no memory fails with an error."""
    *failed, accepted = outcome["ends"]["arrival"]

    assert accepted == ""
    assert failed
    assert all("memory" in end for end in failed)


def test_inputs_of_a_request_without_memory_are_not_kept(outcome):
    """The caller's buffers are released if there is no memory to send them."""
    *failed, refused = outcome["ends"]["asked"]

    assert "MemoryError" in failed
    assert "expected 1 inputs" in refused


def test_nothing_outlives_the_requests(outcome):
    """Requests, responses, buffers and executions are freed after any failure."""
    assert set(outcome["live"].values()) == {0}
