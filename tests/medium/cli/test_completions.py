"""`completions`: scripts for shells, made from the parser."""

import subprocess

import pytest

from openai_frontend.cli.command import main


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completions", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ser"], "serve"),
        (["serve", "--api-"], "--api-key"),
        (["init-repo", "--ki"], "--kind"),
        (["completions", "f"], "fish"),
    ],
)
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for(shell, capsys)

    for name in ("init-repo", "install-core", "connect", "max-queue-size", "tls-certificate"):
        assert name in script


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completions", "powershell"])
    assert "'powershell' is not one of bash, zsh, fish" in capsys.readouterr().err
