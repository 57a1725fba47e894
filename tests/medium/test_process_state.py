"""Detection of process state that a test leaves behind, and its restoration."""

import logging
import signal
import subprocess
import sys
import threading

import pytest

from openai_frontend.logs.configure import log_to_stderr
from tests.process_state import SET_BY_IMPORTS, changes, heed_in_children, log_restored, look


def test_unchanged_process() -> None:
    assert changes(look(), look()) == []


def test_changes_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """New, changed and removed state is reported."""
    monkeypatch.setenv("GONE", "1")
    before = look()
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("NEW", "1")
    monkeypatch.setattr(threading, "excepthook", print)
    monkeypatch.setattr(logging.getLogger("openai_frontend.anything"), "disabled", True)

    assert [line.partition(":")[0] for line in changes(before, look())] == [
        "$GONE",
        "$NEW",
        "logger openai_frontend.anything",
        "threading.excepthook",
    ]


def test_log_restored() -> None:
    """Levels, handlers and hooks are restored."""
    before, handlers = look(), logging.getLogger().handlers[:]
    with log_restored():
        logging.getLogger().handlers.clear()
        log_to_stderr("debug")
        changed = changes(before, look())

    assert len(changed) > 4
    assert changes(before, look()) == []
    assert logging.getLogger().handlers == handlers
    assert sys.excepthook is before["sys.excepthook"]


def test_children_do_not_ignore_what_nohup_ignores() -> None:
    """This process still does."""
    both = (signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in both]
    try:
        heed_in_children()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)
        command = ["/usr/bin/grep", "SigIgn", "/proc/self/status"]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)

    ignored = int(child.stdout.split()[1], 16)
    assert [ignored >> (number - 1) & 1 for number in both] == [0, 0]


def test_imports_of_tests_set_no_variables() -> None:
    """Otherwise no gateway of the whole run would be forked: each would take 1.5 s more CPU."""
    assert set() == SET_BY_IMPORTS
