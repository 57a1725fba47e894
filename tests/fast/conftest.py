"""Tests that start no process and no core, and take seconds together. These hooks enforce it."""

import multiprocessing.process
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import pytest

from openai_frontend.triton import Server
from tests.fork_server import ForkedProcess

_FOLDER = Path(__file__).parent
_MAX_CPU_S = 5.0  # per test: a busy machine makes a test wait, but takes little more CPU time


def _refused(*_: object, **__: object) -> NoReturn:
    pytest.fail("a test in tests/fast starts no process and no core (docs/testing.md)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not item.path.is_relative_to(_FOLDER):  # pytest calls this hook for tests of all folders
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _refused)
        patch.setattr(multiprocessing.process.BaseProcess, "start", _refused)
        patch.setattr(ForkedProcess, "__init__", _refused)  # a gateway
        patch.setattr(Server, "start", _refused)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    begun = time.process_time()
    result = yield
    took_s = time.process_time() - begun
    assert took_s <= _MAX_CPU_S, f"{took_s:.1f} s of CPU, at most {_MAX_CPU_S} s in tests/fast"
    return result
