"""What a test leaves of the process is found, and what a command does to it is undone."""

import logging
import sys
import threading

import pytest

from openai_frontend.logs.setup import log_to_stderr
from tests.process_state import changes, log_restored, look


def test_nothing_has_changed() -> None:
    """Two looks at a process that nobody changes say the same."""
    assert changes(look(), look()) == []


def test_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing is told by its name: what is new, what is another, and what has gone."""
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


def test_a_log_that_was_set_up() -> None:
    """Levels, handlers and hooks are afterwards as they were."""
    before, handlers = look(), logging.getLogger().handlers[:]
    with log_restored():
        logging.getLogger().handlers.clear()
        log_to_stderr("debug")
        changed = changes(before, look())

    assert len(changed) > 4
    assert changes(before, look()) == []
    assert logging.getLogger().handlers == handlers
    assert sys.excepthook is before["sys.excepthook"]
