import sys

import pytest

from scripts.setup.progress import CommandFailed, Progress


def test_failure_shows_the_commands_output():
    """The message has the command and its last lines."""

    script = "print('no such package'); raise SystemExit(3)"

    with pytest.raises(CommandFailed, match=r"no such package\nfailed: .*SystemExit"):
        Progress(1).run([sys.executable, "-c", script])


def test_steps_are_numbered(capsys):
    """Each line has the number, the total and the title."""

    progress = Progress(2)
    for title in ("packages", "extension"):
        progress.begin(title)
        progress.end()

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["[1/2]", "[1/2]", "[2/2]", "[2/2]"]
    assert lines[-1].endswith("extension done")


def test_long_command_reports_progress(capsys, monkeypatch, tmp_path):
    """The state is repeated while the command runs."""

    monkeypatch.setattr("scripts.setup.progress.LOG_INTERVAL_S", 0.01)
    seen = tmp_path / "seen"
    script = f"import pathlib\nwhile not pathlib.Path({str(seen)!r}).exists(): pass"
    states = iter(["3 of 9", "4 of 9"])

    def state() -> str:
        """The command ends after the last one."""
        if (told := next(states, None)) is None:
            seen.touch()
        return told or "9 of 9"

    Progress(1).run([sys.executable, "-c", script], state=state)

    lines = capsys.readouterr().out
    assert "3 of 9" in lines
    assert "4 of 9" in lines
