import sys

import pytest

from scripts.setup.progress import CommandFailed, Progress


def test_a_failure_tells_what_the_command_said():
    """The last lines of a failed command, and the command itself, are the message."""

    script = "print('no such package'); raise SystemExit(3)"

    with pytest.raises(CommandFailed, match=r"no such package\nfailed: .*SystemExit"):
        Progress(1).run([sys.executable, "-c", script])


def test_steps_are_numbered(capsys):
    """Each step says its number, of how many, and its title."""

    progress = Progress(2)
    for title in ("packages", "extension"):
        progress.begin(title)
        progress.end()

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["[1/2]", "[1/2]", "[2/2]", "[2/2]"]
    assert lines[-1].endswith("extension done")


def test_a_long_command_shows_that_it_lives(capsys, monkeypatch):
    """While a command runs, its state is said again and again."""

    monkeypatch.setattr("scripts.setup.progress.LOG_INTERVAL_S", 0.01)
    script = "import sys; sys.stdin.read(); print('x'); import time; time.sleep(0.3)"

    Progress(1).run([sys.executable, "-c", script], state=lambda: "3 of 9")

    assert capsys.readouterr().out.count("3 of 9") >= 2
