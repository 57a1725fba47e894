"""`completions`: scripts for shells, made from the parser."""

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openai_frontend.cli.command import main


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completions", shell]) == 0
    return capsys.readouterr().out


WORDS = pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ser"], "serve"),
        (["serve", "--api-"], "--api-key"),
        (["init-repo", "--ki"], "--kind"),
        (["completions", "f"], "fish"),
    ],
)


def program(shell: str) -> str:
    """The shell's path; without it, the test is skipped."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


@WORDS
def test_bash_completes(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, their options and values."""
    line = " ".join(["openai-frontend", *words])
    asked = f"""
COMP_WORDS=({line}); COMP_CWORD={len(words)}
_shtab_openai_frontend openai-frontend {words[-1]} {line.split()[-2]}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    script = script_for("bash", capsys) + asked
    shown = subprocess.run(["/bin/bash"], input=script, capture_output=True, text=True, check=True)

    assert shown.stdout.split() == [expected]


@WORDS
def test_fish_completes(words, expected, capsys, tmp_path):
    fish = program("fish")
    (tmp_path / "completions.fish").write_text(script_for("fish", capsys))
    line = " ".join(["openai-frontend", *words])
    command = f"source {tmp_path}/completions.fish; complete -C '{line}'"
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    shown = subprocess.run(
        [fish, "-c", command], capture_output=True, text=True, check=True, env=environment
    )

    assert [each.split("\t")[0] for each in shown.stdout.splitlines()] == [expected]


@WORDS
def test_zsh_completes(words, expected, capsys, tmp_path):
    """In a terminal, by the Tab key."""
    zsh = program("zsh")
    (tmp_path / "_openai-frontend").write_text(script_for("zsh", capsys))
    setup = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -D; PS1=; print re''ady\n"
    with terminal([zsh, "-f", "-i"]) as descriptor:
        os.write(descriptor, setup.encode())
        read_until(descriptor, "ready")
        os.write(descriptor, f"{' '.join(['openai-frontend', *words])}\t".encode())
        read_until(descriptor, expected)


@contextmanager
def terminal(command: list[str]) -> Iterator[int]:
    """A program in a pseudo-terminal, whose descriptor is returned."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        yield ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, text: str, timeout_s: float = 60) -> None:
    shown = ""
    deadline_s = time.monotonic() + timeout_s
    while text not in shown:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline_s - time.monotonic()))
        assert ready, f"{text!r} is not in {shown!r}"
        shown += os.read(descriptor, 4096).decode(errors="replace")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for(shell, capsys)

    for name in ("init-repo", "install-core", "connect", "max-queue-size", "tls-certificate"):
        assert name in script


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completions", "powershell"])
    assert "'powershell' is not one of bash, zsh, fish" in capsys.readouterr().err
