"""How the parser treats text, markers and calls, whatever the family."""

import json
import re

import pytest

from openai_frontend.parsing.buffer import Markers
from openai_frontend.parsing.events import (
    ContentText,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME, FAMILIES
from scripts.generate_tools_docs import PAGE, page
from tests.fast.parsing.samples import TOOLS, complete, replay

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def parser(family: str = "hermes") -> FamilyParser:
    return FamilyParser(BY_NAME[family], TOOLS, new_id=lambda name, index: f"{name}-{index}")


def test_events_of_a_call() -> None:
    """A call starts once with its id and name, its arguments follow, and it ends."""

    expected = [
        ToolCallStart(0, "get_weather-0", "get_weather"),
        ToolCallArguments(0, '{"city": "Paris"}'),
        ToolCallEnd(0),
    ]

    assert expected == complete(parser(), CALL)


def test_arguments_stream() -> None:
    """A string in the arguments is passed on as it arrives, one event per piece."""

    reading = parser()
    reading.feed('<tool_call>{"name": "write_file", "arguments": {"content": "one')

    assert [ToolCallArguments(0, " two")] == reading.feed(" two")


@pytest.mark.parametrize(
    ("family", "beginning"),
    [
        ("qwen3_coder", "<function=write_file>\n<parameter=content>\none"),
        ("glm45", "<tool_call>write_file\n<arg_key>content</arg_key>\n<arg_value>one"),
        ("minimax_m2", '</think><invoke name="write_file"><parameter name="content">one'),
        ("llama4_pythonic", "[write_file(content='one"),
        ("gemma4", '<|tool_call>call:write_file{content:<|"|>one'),
    ],
)
def test_converted_strings_stream(family: str, beginning: str) -> None:
    """Converted strings stream too, with JSON escapes."""

    reading = parser(family)
    reading.feed(beginning)

    assert [ToolCallArguments(0, ' \\"two')] == reading.feed(' "two')


def test_text_streams() -> None:
    """Text is passed on at once, unless it may be or touch a marker."""

    reading = parser()

    assert [ContentText("a <b")] == reading.feed("a <b ")
    assert [ContentText(" x")] == reading.feed("x <tool")
    assert [ContentText(" <tools")] == reading.feed("s")


def test_optional_strings_stream() -> None:
    """So do nullable strings, if they are not null."""

    tools = {"f": {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}
    reading = FamilyParser(BY_NAME["qwen3_coder"], tools)
    reading.feed("<function=f><parameter=a>on")

    assert [ToolCallArguments(0, "e")] == reading.feed("e")


@pytest.mark.parametrize("text", ["null", "nu", "none"])
def test_optional_strings_that_may_be_null(text: str) -> None:
    """Text that starts like null waits until it is complete."""

    tools = {"f": {"properties": {"a": {"type": ["string", "null"]}}}}
    answer = replay(
        FamilyParser(BY_NAME["qwen3_coder"], tools),
        f"<function=f><parameter=a>{text}</parameter></function>",
    )

    expected = None if text == "null" else text
    assert {"a": expected} == json.loads(answer.calls[0].arguments)


@pytest.mark.parametrize("end", ['"}}</tool_ca', '"}', "\\", "\\u00", '", "b": tru', '", "b": -1'])
def test_truncated_call_is_not_content(end: str) -> None:
    """A piece of an end marker, of an escape or of a literal is not shown to the user."""

    text = '<tool_call>{"name": "now", "arguments": {"a": "é' + end

    assert replay(parser(), [text]).content == ""


MALFORMED = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ]}}}</tool_call>', '{"a": ]}}}'),
    ("llama3_json", '{"name": "now", "parameters": {"a": ]}}}', '{"a": ]}}}'),
    ("mistral", '[TOOL_CALLS]now[ARGS]{"a": no}', '{"a": no}'),
]


@pytest.mark.parametrize(("family", "text", "arguments"), MALFORMED)
def test_malformed_arguments_are_passed_on_as_written(
    family: str, text: str, arguments: str
) -> None:
    """What follows the mistake, up to the end of the call, belongs to its arguments."""

    answer = replay(parser(family), [*text])

    assert [call.arguments for call in answer.calls] == [arguments]
    assert answer.content == ""


def test_call_after_a_malformed_one() -> None:
    """It is parsed, and so is the content around both."""

    malformed = '<tool_call>{"name": "now", "arguments": {"a": ]}}</tool_call>'
    answer = replay(parser(), [*f"Well.{malformed}{CALL}Done."])

    assert [call.complete for call in answer.calls] == [False, True]
    assert answer.content == "Well.Done."


BRACKETS = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}</tool_call>'),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": {}}}]'),
    ("llama3_json", '{"name": "now", "parameters": {}}}'),
    (
        "kimi_k2",
        "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}}<|tool_call_end|>",
    ),
]


@pytest.mark.parametrize(("family", "text"), BRACKETS)
def test_wrong_brackets_after_the_arguments(family: str, text: str) -> None:
    """The call is complete, and the brackets are not content."""

    answer = replay(parser(family), [*text])

    assert [(call.arguments, call.complete) for call in answer.calls] == [("{}", True)]
    assert answer.content == ""


def test_repeated_ids() -> None:
    """Two calls with the same id from the model get different ids."""

    call = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"

    calls = replay(FamilyParser(BY_NAME["kimi_k2"], TOOLS), [call + call]).calls

    assert [one.id for one in calls] == ["functions.now:0", "functions.now:1"]


def test_invalid_id() -> None:
    """An id is used only if it is valid."""

    text = "[TOOL_CALLS]now[CALL_ID]no id[ARGS]{}"

    assert [call.id for call in replay(parser("mistral"), [text]).calls] == ["now-0"]


def test_lone_surrogates_can_be_encoded() -> None:
    """However a model escapes a lone surrogate, the events can be encoded."""

    text = r'{"name": "now", "arguments": "{\"a\": \"\ud800\"}"}'

    for call in replay(parser(), [f"<tool_call>{text}</tool_call>"]).calls:
        call.arguments.encode()
    name = r'<tool_call>{"name": "\ud800", "arguments": {}}'
    assert name == replay(parser(), [name]).content


def test_nested_function_objects() -> None:
    """A call may contain a function object, but not without limit."""

    text = "<tool_call>" + '{"function":' * 10_000

    assert text == replay(parser(), [text]).content


def test_deeply_nested_arguments() -> None:
    """A recursive schema can make a model write them: they are complete."""
    arguments = '{"a": ' * 200 + "1" + "}" * 200
    call = '<tool_call>\n{"name": "now", "arguments": %s}\n</tool_call>'

    *_, last = complete(parser(), call % arguments)

    assert last == ToolCallEnd(0)


def test_white_space_alone_is_not_content() -> None:
    """Line breaks around reasoning and calls are not content."""

    answer = replay(parser("qwen3"), [f"<think>\n\n</think>\n\n\n{CALL}\n{CALL}\n"])

    assert (answer.content, answer.reasoning, len(answer.calls)) == ("", "", 2)


def test_white_space_between_texts_is_kept() -> None:
    """Text before and after a call stays separated."""

    answer = replay(parser(), [f"One.\n\n{CALL}\n\nTwo.\n"])

    assert answer.content == "One.\n\nTwo.\n"


def test_reasoning_between_calls() -> None:
    """A model may reason again after a call."""

    answer = replay(parser("qwen3"), [f"<think>a</think>{CALL}<think>b</think>{CALL}c"])

    assert (answer.reasoning, answer.content, len(answer.calls)) == ("ab", "c", 2)


@pytest.mark.parametrize(
    ("family", "text", "reasoning", "content"),
    [
        ("command_r7b", "Hi.<|START_THINKING|>a<|END_THINKING|>b", "a", "Hi.b"),
        ("qwen3", "Hi.<think>a</think>b", "", "Hi.<think>a</think>b"),
    ],
)
def test_reasoning_within_text(family: str, text: str, reasoning: str, content: str) -> None:
    """Only a special token starts it there; other markers are text."""

    answer = replay(parser(family), [*text])

    assert (answer.reasoning, answer.content) == (reasoning, content)


def test_call_that_ends_reasoning() -> None:
    """If the family says so, a call ends the reasoning; what only looks like a call does not."""

    section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
    whole = f"<think>a {section} b{section}<|tool_call_argument_begin|>{{}}<|tool_call_end|>c"

    answer = replay(parser("kimi_k2"), [whole])

    assert (f"a {section} b", "c") == (answer.reasoning, answer.content)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("hermes", r"call_[0-9a-f]{24}"),
        ("mistral", r"[A-Za-z0-9]{9}"),
        ("kimi_k2", r"functions\.now:0"),
    ],
)
def test_id_formats(family: str, form: str) -> None:
    """A call without an id gets one in the format of the family's template."""

    assert re.fullmatch(form, BY_NAME[family].id_form("now", 0))


def test_ids_are_unique() -> None:
    """Two calls never share an id."""

    for family in ("hermes", "mistral"):
        form = BY_NAME[family].id_form
        assert len({form("now", 0) for _ in range(100)}) == 100


def test_family_without_reasoning() -> None:
    """It ignores a prompt that opens reasoning."""

    reading = FamilyParser(BY_NAME["hermes"], TOOLS, reasoning_open=True)

    assert [ContentText("a</think>")] == complete(reading, "a</think>")


@pytest.mark.parametrize(
    ("family", "pieces"),
    [
        ("qwen3", ["<think>", "a", "</think>", "b"]),
        ("gpt_oss", ["<|channel|>analysis<|message|>", "a", "<|end|>", "b"]),
    ],
)
def test_reasoning_can_be_counted(family: str, pieces: list[str]) -> None:
    """The parser reports whether it is in reasoning, so that reasoning tokens can be counted."""

    reading = parser(family)
    states = []
    for piece in pieces:
        reading.feed(piece)
        states.append(reading.in_reasoning)

    assert states == [True, True, False, False]


def test_token_ids_make_no_difference() -> None:
    """Ids may come with the text; families parse the text."""

    assert [ReasoningText("a")] == complete(parser("think"), "a", [1, 2])


def test_overlapping_markers() -> None:
    """Markers with a common start wait until it is clear which one came."""

    markers = Markers("</a>", "\n</a>", "<", "</a>!")

    assert markers.find("\n", 0, False) == (0, "")
    assert markers.find("\n</a>", 0, False) == (0, "\n</a>")
    assert markers.find("x</a>", 0, False) == (1, "")
    assert markers.find("x</a>", 0, True) == (1, "</a>")
    assert markers.find("x</a>!", 0, False) == (1, "</a>!")


def test_special_tokens_are_declared() -> None:
    """Families whose markers look like special tokens keep them in the text."""

    for family in FAMILIES:
        starts = family.tools.starts if family.tools else ()
        if any(start.startswith(("<|", "[TOOL", "<｜")) for start in starts):  # noqa: RUF001
            assert family.special_tokens, family.name


def test_tools_page_is_current() -> None:
    """`python -m scripts.generate_tools_docs` would change nothing."""

    assert PAGE.read_text(encoding="utf-8") == page()
