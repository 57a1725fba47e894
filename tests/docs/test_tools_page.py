"""The output that docs/tools.md shows is current."""

import pytest

from openai_frontend.cli import main
from scripts.generate_tools_docs import PAGE
from tests.gateway_process import ROOT

pytestmark = pytest.mark.slow  # loads a tokenizer and its templates


def test_output_of_check_is_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`openai-frontend check demo` prints the block on the page."""

    monkeypatch.chdir(ROOT)
    assert main(["check", "demo"]) == 0
    shown = f"$ openai-frontend check demo\n{capsys.readouterr().out}```\n"
    assert shown in PAGE.read_text(encoding="utf-8")
