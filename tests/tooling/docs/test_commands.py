"""Commands in the documentation exist: subcommands, options and make targets.

They are parsed, not run: most start a server, need a model, or change the machine.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_frontend.cli.parser import parser
from tests.gateway_process import ROOT

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROGRAM = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?openai-frontend (.*)$")


def lines(page: Path) -> Iterator[str]:
    """Lines of code blocks, with continuation lines joined."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def commands() -> Iterator[tuple[str, str]]:
    """The commands of each page, without lines with `...` or `[`, which describe the syntax."""
    for page in PAGES:
        for line in lines(page):
            found = PROGRAM.match(line.partition(" && ")[2] or line)
            if found and "..." not in found[1] and "[" not in found[1]:
                yield page.name, found[1]


COMMANDS = sorted(set(commands()))


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_line_accepts_each_command(page: str, command: str) -> None:
    """The parser exits with an error for an unknown subcommand or option."""
    assert parser().parse_args(shlex.split(command, comments=True)).command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]+)", text, re.MULTILINE))

    assert named - TARGETS == set()
