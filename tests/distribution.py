"""A pytest plugin that distributes the tests over xdist's workers (`-n auto`)."""

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Their tests share the engines of a core in the worker.
_IN_PROCESS = "tests/vllm/"
# Their tests share the engines of a gateway; others name the mark themselves.
_WITH_GATEWAYS = ("tests/api/backends/", "tests/clients/")
ENGINES = ("engines in process", "engines of gateways")
# A gateway for the session costs 2 s of CPU time per worker that uses it.
_SESSION_GATEWAYS = {
    "tests/api/conformance/": "mock gateway",
    "tests/api/test_": "mock gateway",
    "tests/resilience/faults/test_invariants.py": "mock gateway",
    "tests/api/middleware/test_headers.py": "mock gateway",
    "tests/api/routers/test_documentation.py": "mock gateway",
    "tests/api/routers/test_tokenization.py": "mock gateway",
    "tests/security/": "guarded gateway",
    "tests/api/tracing/": "traced gateway",
}
# What takes longest first: the last unit of a run leaves the other workers without tests
_FIRST = (*ENGINES, "guarded gateway")
# It measures times, best when the engines of other workers have ended
_LAST = "tests/resilience/faults/test_overload.py"
# Workers beyond the cores, because many tests wait; those of engines leave less room
_WAITS, _WAITS_WITHOUT_ENGINES = 1, 2


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """No workers for a few tests: each worker would first collect all of them."""
    of_files = all(arg.partition("::")[0].endswith(".py") for arg in config.args)
    few = config.option.keyword or of_files
    without_engines = "not engine" in config.option.markexpr
    waits = _WAITS_WITHOUT_ENGINES if without_engines else _WAITS
    return 0 if few else len(os.sched_getaffinity(0)) + waits


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """In the order of collection, after what takes longest."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps a file in one worker, with its fixtures, and what shares engines in one worker too."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        """What takes longest first; what measures times last."""
        if _LAST in self.workqueue:
            self.workqueue.move_to_end(_LAST)
        for name in reversed(_FIRST):
            if name in self.workqueue:
                self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """After a crash of the worker, only units with tests that have not run wait again: a worker
        that got no tests would wait forever.
        """
        units = self.assigned_work[node].items()
        self.assigned_work[node] = {name: unit for name, unit in units if not all(unit.values())}
        crashed: str | None = super().remove_node(node)
        return crashed

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid.partition("::")[0])


@cache
def scope(file: str) -> str:
    """Files of one scope run in one worker, in the order of collection."""
    in_process, of_gateways = ENGINES
    if file.startswith(_IN_PROCESS):
        return in_process
    if file.startswith(_WITH_GATEWAYS) or "mark.engine" in Path(file).read_text():
        return of_gateways
    shared = (name for start, name in _SESSION_GATEWAYS.items() if file.startswith(start))
    return next(shared, file)
