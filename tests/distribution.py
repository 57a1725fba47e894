"""A pytest plugin that distributes the tests over xdist's workers (`-n auto`)."""

import os
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Their tests share an engine; others name the mark themselves.
_WITH_ENGINES = ("tests/backends/", "tests/clients/", "tests/vllm/")
_WAITS = 1  # workers beyond the cores, because many tests wait


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """No workers for a few tests: each worker would first collect all of them."""
    of_files = all(arg.partition("::")[0].endswith(".py") for arg in config.args)
    few = config.option.keyword or of_files
    return 0 if few else len(os.sched_getaffinity(0)) + _WAITS


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """In the order of collection: what needs engines takes longest and begins near its start."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps a file in one worker, with its fixtures, and in another all that start engines."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid.partition("::")[0])


@cache
def scope(file: str) -> str:
    """Files of one scope run in one worker, in the order of collection."""
    if file.startswith(_WITH_ENGINES) or "mark.engine" in Path(file).read_text():
        return "engine"
    return file
