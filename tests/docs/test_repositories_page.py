"""docs/repositories.md lists the options and output of the commands."""

import argparse
import dataclasses
import shlex

import pytest

from openai_frontend.cli import init_repo
from openai_frontend.cli.check.report import Report
from openai_frontend.cli.init_repo.options import KINDS
from openai_frontend.cli.parser import parser
from tests.gateway_process import ROOT

PAGE = (ROOT / "docs" / "repositories.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("openai-frontend ")]


def flags() -> list[str]:
    options = argparse.ArgumentParser(add_help=False)
    init_repo.add_arguments(options)
    words = options.format_help().replace(",", " ").replace("[", " ").replace("]", " ").split()
    return sorted({word for word in words if word.startswith("--")})


@pytest.mark.parametrize("flag", flags())
def test_page_has_every_option_of_init_repo(flag: str) -> None:
    assert f"`{flag}" in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_page_has_every_kind(kind: str) -> None:
    assert f"| `{kind}`" in PAGE


def test_page_has_every_line_of_check() -> None:
    """Members that only the JSON output has are exempt."""

    lines = {each.name for each in dataclasses.fields(Report)} - {"no_endpoint", "expose"}
    words = {line.replace("_", " ") for line in lines} - {"model"}
    assert {word for word in words if f"`{word}`" not in PAGE} == set()


@pytest.mark.parametrize("line", [line for line in COMMANDS if "..." not in line])
def test_commands_exist(line: str) -> None:
    """Every example uses existing options."""

    assert parser().parse_args(shlex.split(line, comments=True)[1:]).command in (
        "init-repo",
        "check",
    )
