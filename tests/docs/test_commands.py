"""Options of the documentation's commands and make targets exist.

This covers the commands that no test can run as well.
"""

import re
import shlex
from pathlib import Path

import pytest

from openai_frontend.cli.parser import parser
from tests.docs.documented_commands import COMMANDS, PAGES
from tests.gateway_process import ROOT

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROGRAM = re.compile(r"(?:^|&& )(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?openai-frontend (.*)$")
OURS = sorted({(each.page, found[1]) for each in COMMANDS if (found := PROGRAM.search(each.text))})


def test_pages_have_commands() -> None:
    assert len(OURS) > 20


@pytest.mark.parametrize(("page", "command"), OURS)
def test_command_line_accepts_each_command(page: str, command: str) -> None:
    """The parser exits with an error for an unknown subcommand or option."""
    words, _, _ = command.partition(" > ")  # the shell's
    assert parser().parse_args(shlex.split(words, comments=True)).command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]+)", text, re.MULTILINE))

    assert named - TARGETS == set()
