"""The example parser of docs/tools.md, loaded through the setting."""

from pathlib import Path

import pytest

from openai_frontend.models.parser_selection import ModelFiles, select_parser
from openai_frontend.parsing.output_format import OutputFormat
from tests.fast.parsing.samples import TOOLS, Answer, answer
from tests.gateway_process import ROOT

TEXT = 'Let me see.\n!now {"zone": "CET"}\n!fly {}\n!now {\n\n!now {}'


@pytest.fixture
def line_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OutputFormat:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    files = ModelFiles(folder=tmp_path, chat_template=None)
    return select_parser(files, {"tool_call_parser": "line_calls:LineCalls"})


def read(reading: OutputFormat, size: int) -> Answer:
    parser = reading.parser(TOOLS, prompt=None)
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    return answer([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


@pytest.mark.parametrize("size", range(1, len(TEXT) + 1))
def test_documented_parser_reads_calls(line_calls: OutputFormat, size: int) -> None:
    """At every chunk size, calls of offered tools are parsed and other text is content."""

    found = read(line_calls, size)

    assert [(call.name, call.arguments) for call in found.calls] == [
        ("now", '{"zone": "CET"}'),
        ("now", "{}"),
    ]
    assert found.content == "Let me see.\n!fly {}\n!now {\n\n"


def test_capabilities_of_the_documented_parser(line_calls: OutputFormat) -> None:
    """It parses calls, not reasoning, and needs no special tokens."""

    assert line_calls.tools
    assert not line_calls.reasoning
    assert not line_calls.special_tokens
