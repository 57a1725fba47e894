"""What the parser holds is bounded, and so is what it lets through."""

import json

import pytest

from openai_frontend.parsing.buffer import MAX_UNDECIDED
from openai_frontend.parsing.events import MAX_ARGUMENTS, ContentText
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME
from tests.fast.parsing.samples import TOOLS, Answer, complete, replay
from tests.medium.parsing.test_linear_time import HOSTILE

LONG = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "'),
    (
        "kimi_k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_argument_begin|>{"a": "',
    ),
    ("qwen3_coder", "<function=write_file><parameter=content>"),
    ("qwen3_coder", "<function=search><parameter=tags>"),
    ("llama4_pythonic", "[now(a='"),
    ("gpt_oss", '<|channel|>commentary to=functions.now<|message|>{"a": "'),
]
each_long = pytest.mark.parametrize(("family", "beginning"), LONG)


def parsed(family: str, *pieces: str) -> Answer:
    return replay(FamilyParser(BY_NAME[family], TOOLS), pieces)


@each_long
def test_long_arguments_end_the_output(family: str, beginning: str) -> None:
    """Arguments stop at the limit; the call is incomplete, and nothing follows."""

    answer = parsed(family, beginning + " " * 10, *["x" * 1000] * 300, "<tool_call>")

    assert answer.too_long
    assert len(answer.calls[0].arguments.encode()) <= MAX_ARGUMENTS
    assert answer.order[-2:] == ["ToolCallEnd", "ArgumentsTooLong"]


def test_the_limit_counts_bytes() -> None:
    """Characters of four bytes count as four, and none is cut in half."""

    for piece in (1000, MAX_ARGUMENTS):
        answer = parsed("hermes", LONG[0][1], *["😀" * piece] * (MAX_ARGUMENTS // piece))

        written = len(answer.calls[0].arguments.encode())
        assert MAX_ARGUMENTS - 4 < written <= MAX_ARGUMENTS


@pytest.mark.parametrize("room", range(2, 24))
def test_the_limit_is_the_same_in_any_pieces(room: int) -> None:
    """The position of the limit does not depend on how the text is split."""

    text = '<tool_call>{"name": "now", "arguments": {"é": "a😀", "b": [12345]}}'
    family = BY_NAME["hermes"]

    def answer(pieces: str | list[str]) -> Answer:
        parser = FamilyParser(family, TOOLS, new_id=lambda *_: "id", max_arguments=room)
        return replay(parser, pieces)

    assert answer([text]) == answer(text)
    assert answer([text]).too_long


def test_arguments_at_the_limit() -> None:
    """Arguments of exactly the limit are complete."""

    arguments = json.dumps({"a": "x" * (MAX_ARGUMENTS - 9)})
    assert len(arguments) == MAX_ARGUMENTS

    answer = parsed("hermes", f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')

    assert arguments == answer.calls[0].arguments
    assert not answer.too_long


@pytest.mark.parametrize(
    ("beginning", "unit"),
    [
        ('<tool_call>{"arguments": {"a": "', "x"),
        ('<tool_call>{"arguments": {"a": ', " "),
        ('<tool_call>{"id": "', "é"),
        ("<tool_call>", "\n"),
    ],
)
def test_undecided_text_becomes_content(beginning: str, unit: str) -> None:
    """Text that may be a call is held up to a limit, then it is content."""

    parser = FamilyParser(BY_NAME["hermes"], TOOLS)
    piece = unit * 1000

    fed = [parser.feed(beginning), *(parser.feed(piece) for _ in range(200))]

    first = next(events for events in fed if events)
    text = "".join(event.text for event in first if isinstance(event, ContentText))
    assert MAX_UNDECIDED <= len(text) < MAX_UNDECIDED + len(piece)
    assert text == (beginning + piece * 200)[: len(text)]


@pytest.mark.parametrize("size", [100, 600])
def test_long_numbers_are_invalid(size: int) -> None:
    """Beyond a plausible length, a number is an error, and its call incomplete."""

    text = f'<tool_call>{{"name": "now", "arguments": {{"a": {"1" * size}}}}}'

    whole, split = parsed("hermes", text), parsed("hermes", text[:60], text[60:])

    assert (size == 100) == whole.calls[0].complete
    assert whole.calls[0].arguments == split.calls[0].arguments
    assert "1" * size in whole.calls[0].arguments


def test_long_white_space_is_not_held() -> None:
    """White space waits for what follows it, up to a limit."""

    parser = FamilyParser(BY_NAME["hermes"], TOOLS)

    assert not parser.feed("\n" * 1000)
    assert ContentText("\n" * 6000) == parser.feed("\n" * 5000)[0]
    assert [ContentText("\n")] == parser.feed("\n")


@pytest.mark.parametrize(("family", "unit"), HOSTILE)
def test_buffered_text_stays_short(family: str, unit: str) -> None:
    """The formats consume what they can, so little text is buffered."""

    parser = FamilyParser(BY_NAME[family], TOOLS)
    held = []
    for piece in unit * (3000 // len(unit)):
        parser.feed(piece)
        held.append(len(parser._cursor.text))

    assert max(held) < 600


def test_nothing_is_parsed_after_the_end() -> None:
    """A parser that stopped at a limit emits and buffers nothing."""

    parser = FamilyParser(BY_NAME["hermes"], TOOLS, max_arguments=4)
    complete(parser, LONG[0][1] + "xxxxxx")

    assert parser.feed("more" * 1000) + parser.finish() == []
