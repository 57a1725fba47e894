"""A pytest plugin that checks after each test module that the process state is unchanged.

A log level, hook, signal handler or variable left behind by a test affects later tests: without
pytest's own hooks, for example, no test fails for an exception of a thread or a destructor.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import fork_server

State = dict[str, object]

_OWN = "openai_frontend"
_PYTESTS = ("PYTEST_CURRENT_TEST",)
# vLLM or torch runs in the test process there; their libraries set variables on import.
_WITH_ENGINES = ("vllm", "api/backends", "medium/demo_model")
_SET_BY_ENGINES = ("$", "sys.path:")
# The first test of a worker that imports torch or transformers sets them, in any folder.
_SET_BY_TORCH = ("$KMP_", "$TORCHINDUCTOR_CACHE_DIR:")

# Variables that modules of tests have changed when they were imported
SET_BY_IMPORTS: set[str] = set()


def look() -> State:
    """The current state of the process, by name."""
    return {
        **_loggers(),
        **{
            f"{number.name}'s handler": signal.getsignal(number)
            for number in signal.Signals
            if number != signal.SIGINT  # asyncio's runners have their own
        },
        **{f"${name}": value for name, value in os.environ.items() if name not in _PYTESTS},
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "threading.excepthook": threading.excepthook,
        "logging.captureWarnings": _captures_warnings(),
        "gc.isenabled": gc.isenabled(),
        "gc.get_threshold": gc.get_threshold(),
        "working directory": os.getcwd(),
        "sys.path": tuple(sys.path),
        "sys.getrecursionlimit": sys.getrecursionlimit(),
        "sys.getswitchinterval": sys.getswitchinterval(),
    }


def _loggers() -> State:
    """Level, propagation, `disabled` and handlers of the root logger and our own, except loggers
    in their initial state.
    """
    manager = logging.getLogger().manager
    own = [
        logger
        for name, logger in manager.loggerDict.items()
        if name.partition(".")[0] == _OWN and isinstance(logger, logging.Logger)
    ]
    found = {f"logger {each.name}": _settings(each) for each in (logging.getLogger(), *own)}
    return {name: settings for name, settings in found.items() if settings is not None}


def _settings(logger: logging.Logger) -> tuple[object, ...] | None:
    """Omits pytest's handlers, which change with each test, and a library's NullHandler."""
    handlers = tuple(
        handler
        for handler in logger.handlers
        if not type(handler).__module__.startswith("_pytest.")
        and not isinstance(handler, logging.NullHandler)
    )
    settings = (logger.level, logger.propagate, logger.disabled, handlers)
    return None if settings == (logging.NOTSET, True, False, ()) else settings


def _captures_warnings() -> bool:
    return vars(logging)["_warnings_showwarning"] is not None


def changes(before: State, after: State) -> list[str]:
    """One line for each name whose value differs."""
    absent = "-"
    return [
        f"{name}: {before.get(name, absent)!r} before, {after.get(name, absent)!r} now"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, absent) != after.get(name, absent)
    ]


@contextmanager
def log_restored() -> Iterator[None]:
    """Restores the process state that a command changes: logging and the exception hooks."""
    loggers = [logging.getLogger(), logging.getLogger(_OWN)]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    captured = _captures_warnings()
    try:
        yield
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers
        logging.captureWarnings(captured)
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.hookimpl(trylast=True)  # xdist starts its workers first: they ignore the signals too
def pytest_sessionstart() -> None:
    heed_in_children()


def heed_in_children() -> None:
    """Child processes get the default action of SIGINT and SIGHUP, which this process may ignore.

    `nohup make test &` starts it so. A child inherits SIG_IGN, but no handler: without this, a
    gateway ignores the signals that a test sends to it.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(number: int, frame: object) -> None:
    """A handler instead of SIG_IGN."""


def pytest_collection_finish() -> None:
    environment = {**os.environ, **fork_server.ENVIRONMENT}
    SET_BY_IMPORTS.update(fork_server.differences(environment))


@pytest.fixture(autouse=True, scope="module")
def _process_is_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    gc.collect()
    gc.freeze()  # the objects of earlier modules, such as imported packages: collections get short
    before = look()
    yield
    left = [line for line in changes(before, look()) if not line.startswith(_SET_BY_TORCH)]
    folder = request.path.parent.relative_to(Path(__file__).parent).as_posix()
    if folder.startswith(_WITH_ENGINES):
        left = [line for line in left if not line.startswith(_SET_BY_ENGINES)]
    assert not left, "\n".join(["the module leaves the process changed:", *left])
