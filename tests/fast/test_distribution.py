"""The distribution of the tests over xdist's workers."""

from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests import distribution


def test_what_shares_engines_or_a_gateway_is_in_one_worker():
    """A core's in one, a gateway's in another, by folder or by mark; other files are alone."""
    of_gateways = ("tests/api/backends/test_api.py", "tests/api/test_openai_sdk.py")

    assert distribution.scope("tests/vllm/test_engine.py") == "engines in process"
    assert {distribution.scope(file) for file in of_gateways} == {"engines of gateways"}
    assert distribution.scope("tests/api/test_limits.py") == "mock gateway"
    assert distribution.scope("tests/security/test_odd_json.py") == "guarded gateway"
    assert distribution.scope("tests/medium/test_sse.py") == "tests/medium/test_sse.py"


def test_what_shares_engines_begins_first():
    """Each in a worker of its own; the third worker has the first other file."""
    tests = [
        "tests/medium/test_sse.py::test_a",
        "tests/medium/test_sse.py::test_b",
        "tests/fast/test_background_tasks.py::test_c",
        "tests/clients/test_openai.py::test_d",
        "tests/vllm/test_engine.py::test_e",
    ]
    _, nodes = scheduled(tests, workers=3)

    assert [tests[node.sent[0]] for node in nodes] == [tests[4], tests[3], tests[0]]


def test_files_of_a_slow_shared_gateway_begin_before_others():
    """They are collected late and run in one worker: the others would wait for it at the end."""
    tests = [
        "tests/medium/test_sse.py::test_a",
        "tests/security/test_odd_json.py::test_b",
        "tests/vllm/test_engine.py::test_c",
    ]
    _, nodes = scheduled(tests, workers=2)

    assert [tests[node.sent[0]] for node in nodes] == [tests[2], tests[1]]


def test_tests_of_a_crashed_worker_run_in_another():
    """Its complete files do not wait again: a worker that gets no tests would wait forever."""
    files = ("background_tasks", "files", "memory_budget", "prefix_cache")
    tests = [f"tests/fast/test_{file}.py::test_{number}" for file in files for number in range(2)]
    scheduler, (first, second) = scheduled(tests, workers=2)
    for index in first.sent[:2]:  # one file
        scheduler.mark_test_complete(first, index)
    crashing = tests[first.sent[2]]

    assert scheduler.remove_node(first) == crashing

    waiting = scheduler.workqueue.values()
    assert all(False in unit.values() for unit in waiting)
    assert any(crashing in unit for unit in (*waiting, *scheduler.assigned_work[second].values()))


def scheduled(tests: list[str], *, workers: int) -> tuple[Any, list["Worker"]]:
    """The scheduler of a run that has begun, and its workers."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True), getvalue=lambda _: ["popen"] * workers
    )
    scheduler = distribution.pytest_xdist_make_scheduler(config, Producer("test"))
    nodes = [Worker() for _ in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    return scheduler, nodes


class Worker:
    """Records the indexes of the tests that the scheduler sends."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="worker")
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.sent += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize(
    ("arguments", "keyword", "parallel"),
    [
        (["tests"], "", True),
        (["tests/fast"], "", True),
        (["tests/fast", "tests/medium/test_sse.py"], "", True),
        (["tests/medium/test_sse.py", "tests/medium/test_sse.py::test_any"], "", False),
        (["tests"], "name", False),
    ],
)
def test_few_tests_run_without_workers(arguments, keyword, parallel):
    option = SimpleNamespace(keyword=keyword, markexpr="")
    config: Any = SimpleNamespace(args=arguments, option=option)

    assert bool(distribution.pytest_xdist_auto_num_workers(config)) == parallel


def test_without_engines_there_is_one_worker_more():
    """The quick selection waits more and needs less memory."""
    workers = []
    for marks in ("", "not slow and not engine"):
        option = SimpleNamespace(keyword="", markexpr=marks)
        config: Any = SimpleNamespace(args=["tests"], option=option)
        workers.append(distribution.pytest_xdist_auto_num_workers(config))
    assert workers[1] == workers[0] + 1
