"""The parser of a model's output: from settings, else from the model's files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.parser_selection import (
    ModelFiles,
    limitations,
    select_parser,
    template_for_tools,
    warning,
)
from openai_frontend.parsing.events import ContentText, Event, ReasoningText
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from tests.fast.parsing.samples import TOOLS, Answer, answer, complete

HERMES = "{% if tools %}<tool_call>{% endif %}"
QWEN3 = HERMES + "{{ content.split('</think>') }}"
GPT_OSS = "<|channel|><|message|>{% if tools %}"
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


class Shouts:
    """A user's parser: content in capitals, reasoning in brackets."""

    def __init__(self, tools: Any, *, prompt: str | None, tokenizer: Path) -> None:
        self.given = (sorted(tools), prompt, tokenizer.name)
        self.in_reasoning = False

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        if text.startswith("("):
            return [ReasoningText(text)]
        return [ContentText(text.upper())] if text else []

    def finish(self) -> list[Event]:
        return [ContentText("!")]


class Fails(Shouts):
    """A user's parser that raises."""

    special_tokens = False

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        raise ZeroDivisionError


SHOUTS, FAILS = f"{__name__}:Shouts", f"{__name__}:Fails"


def files(folder: Path, template: str | None = None, **config: str) -> ModelFiles:
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return ModelFiles(folder=folder, chat_template=template)


def read(found: Any, text: str, prompt: str | None = None) -> Answer:
    return answer(complete(found.parser(TOOLS, prompt=prompt), text))


@pytest.mark.parametrize(
    ("template", "config", "named", "expected"),
    [
        (None, {}, {}, "text"),
        (None, {"model_type": "qwen3"}, {}, "qwen3"),
        (HERMES, {"model_type": "qwen3"}, {}, "hermes"),
        (HERMES, {}, {"tool_call_parser": "mistral"}, "mistral"),
        (QWEN3, {}, {"tool_call_parser": "mistral"}, "mistral+qwen3"),
        (QWEN3, {}, {"tool_call_parser": "none"}, "qwen3"),
        (QWEN3, {}, {"reasoning_parser": "none"}, "qwen3"),
        (HERMES, {}, {"reasoning_parser": "deepseek_r1"}, "hermes+deepseek_r1"),
        (HERMES, {}, {"tool_call_parser": "qwen2.5", "reasoning_parser": "think"}, "hermes+think"),
        (QWEN3, {}, {"tool_call_parser": "none", "reasoning_parser": "none"}, "text"),
        (QWEN3, {}, {"tool_call_parser": "gpt_oss"}, "gpt_oss"),
        (GPT_OSS, {}, {"tool_call_parser": "hermes"}, "hermes"),
        (GPT_OSS, {}, {"tool_call_parser": "gpt_oss", "reasoning_parser": "openai"}, "gpt_oss"),
        (QWEN3, {}, {"tool_call_parser": SHOUTS}, f"{SHOUTS}+qwen3"),
        (GPT_OSS, {}, {"tool_call_parser": SHOUTS}, SHOUTS),
        (HERMES, {}, {"tool_call_parser": SHOUTS, "reasoning_parser": SHOUTS}, SHOUTS),
    ],
)
def test_precedence(
    tmp_path: Path,
    template: str | None,
    config: dict[str, str],
    named: dict[str, str],
    expected: str,
) -> None:
    """Settings override the template, which overrides the config; each setting replaces its
    half.
    """

    assert select_parser(files(tmp_path, template, **config), named).name == expected


def test_combined_parsers(tmp_path: Path) -> None:
    """The named family parses tool calls in what the template's reasoning parser leaves."""

    found = select_parser(files(tmp_path, QWEN3), {"tool_call_parser": "mistral"})

    said = read(found, '<think>Hm.</think>[TOOL_CALLS]now{"a": 1}')

    assert (said.reasoning, [call.name for call in said.calls]) == ("Hm.", ["now"])


def test_no_tool_parser(tmp_path: Path) -> None:
    """`none` keeps the detected reasoning parser."""

    said = read(
        select_parser(files(tmp_path, QWEN3), {"tool_call_parser": "none"}),
        f"<think>a</think>{CALL}",
    )

    assert (said.reasoning, said.content, said.calls) == ("a", CALL, [])


def test_reasons(tmp_path: Path) -> None:
    """One sentence for each setting and each piece of evidence."""

    found = select_parser(files(tmp_path, QWEN3), {"tool_call_parser": "mistral"})

    assert found.evidence == (
        "The setting tool_call_parser is 'mistral'.",
        "The chat template contains '<tool_call>'.",
        "The chat template contains '</think>'.",
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"tool_call_parser": "hermes", "reasoning_parser": "gpt_oss"},
            "'gpt_oss' parses tool calls and",
        ),
        (
            {"tool_call_parser": "nowhere.at_all:Class"},
            "its tool_call_parser nowhere.at_all:Class: ModuleNotFoundError: No module",
        ),
        ({"reasoning_parser": f"{__name__}:Nobody"}, "its reasoning_parser .*has no attribute"),
        ({"tool_call_parser": "json:__all__"}, "json:__all__: TypeError: not a class"),
        ({"tool_call_parser": ":"}, "its tool_call_parser :: "),
    ],
)
def test_parser_that_does_not_load(tmp_path: Path, named: dict[str, str], message: str) -> None:
    """The model does not serve, and the reason names the setting."""

    with pytest.raises(ModelUnavailable, match=message):
        select_parser(files(tmp_path, HERMES), named)


def test_invalid_config(tmp_path: Path) -> None:
    """An error, instead of treating it as missing."""

    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ModelUnavailable, match=r"cannot read its config\.json: "):
        select_parser(files(tmp_path), {})


def test_custom_parser(tmp_path: Path) -> None:
    """A class gets the tools, the prompt and the tokenizer's folder, and parses the output."""

    found = select_parser(files(tmp_path), {"tool_call_parser": SHOUTS, "reasoning_parser": SHOUTS})

    said = read(found, "(hm)")
    assert (said.reasoning, said.content) == ("(hm)", "!")
    assert read(found, "hello").content == "HELLO!"
    assert (found.tools, found.reasoning, found.special_tokens) == (True, True, True)


def test_custom_tool_parser(tmp_path: Path) -> None:
    """It gets what the family's reasoning parser leaves."""

    found = select_parser(files(tmp_path, QWEN3), {"tool_call_parser": SHOUTS})

    said = read(found, "<think>(a)</think>(b)")

    assert (said.reasoning, said.content) == ("(a)(b)", "!")


def test_custom_parser_that_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest of the output becomes content, and the failure is logged once."""

    found = select_parser(files(tmp_path), {"tool_call_parser": FAILS})

    assert [read(found, "hello").content for _ in range(3)] == ["hello"] * 3
    failures = [record for record in caplog.records if record.exc_info]
    assert [FAILS in record.getMessage() for record in failures] == [True]
    assert not found.special_tokens


@pytest.mark.parametrize(
    ("family", "template", "expected", "warned"),
    [
        ("qwen3", HERMES, [], False),
        ("gpt_oss", None, [], False),
        ("hermes", HERMES, ["Reasoning"], False),
        ("hermes", "{{ messages }}", ["chat template", "Reasoning"], True),
        ("json", "{% if tools %}", ["names an offered tool"], True),
        ("think", "<think>", ["Tool calls are not"], True),
        ("text", None, ["Tool calls are not", "Reasoning"], False),
    ],
)
def test_limitations(
    tmp_path: Path, family: str, template: str | None, expected: list[str], warned: bool
) -> None:
    """One sentence each; missing tool calls are also a warning if the output is parsed."""

    found, model = OutputFormat(family=BY_NAME[family]), files(tmp_path, template)

    sentences = limitations(found, model)

    assert len(sentences) == len(expected)
    for part, sentence in zip(expected, sentences, strict=True):
        assert part in sentence
    assert warning(found, model) == (sentences[0] if warned else "")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ["Reasoning"]),
        ({"reasoning_parser": SHOUTS}, []),
        ({"tool_call_parser": "none"}, ["Tool calls are not", "Reasoning"]),
    ],
)
def test_settings_remove_limitations(
    tmp_path: Path, named: dict[str, str], expected: list[str]
) -> None:
    """A configured parser supplies what the family lacks."""

    found = files(tmp_path, HERMES)

    sentences = limitations(select_parser(found, named), found)

    assert [
        part for part in ("Tool calls are not", "Reasoning") if part in str(sentences)
    ] == expected
    assert len(sentences) == len(expected)


def test_template_for_tools() -> None:
    """Of several templates, the one for requests with tools determines the format of calls."""

    assert template_for_tools({"default": "a", "tool_use": "b"}) == "b"
    assert template_for_tools({"default": "a"}) == "a"
    assert template_for_tools({}) is None
