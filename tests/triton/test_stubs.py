"""Which instances of the Python backend's are whose, and which have died."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from openai_frontend.triton import stubs

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that look like an instance's stub, and do nothing."""
    started = []

    def start(instance: str) -> "subprocess.Popen[bytes]":
        arguments = ["/triton_python_backend_stub", "-c", "input()", instance, "/models"]
        process = subprocess.Popen(arguments, executable=sys.executable, stdin=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def dead(known: stubs.Stubs) -> set[str]:
    """After two looks, as it takes."""
    known.dead()
    return known.dead()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Leaves a zombie."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_stub_that_dies(start):
    """Its instance is dead; others are not."""
    known = stubs.Stubs()
    first, _ = start("one_0"), start("other_0")
    assert known.find() == {"one_0", "other_0"}
    assert dead(known) == set()
    end(first)

    assert dead(known) == {"one_0"}


def test_an_instance_that_has_been_loaded_again(start):
    """It is alive, though the core has not put its old process away."""
    known = stubs.Stubs()
    first = start("one_0")
    known.find()
    end(first)
    start("one_0")

    assert known.find(changing=True) == set()  # the core may still ask the old one
    assert dead(known) == {"one_0"}
    assert known.find() == {"one_0"}
    assert dead(known) == set()


@pytest.mark.parametrize(
    ("instance", "group", "whose"),
    [
        ("model_0", "model", True),  # of a config without groups
        ("model_0_1", "model_0", True),  # of one that counts two
        ("other_0", "model", False),
        ("model_0_0", "model_0_0", False),  # `model`'s, beside a model `model_0`
        ("model_x", "model", False),
    ],
)
def test_an_instances_model(instance, group, whose):
    """An instance has its group's name, and its number."""
    assert stubs.serves(instance, [{"name": "another"}, {"name": group}]) is whose
