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


NOW = '<tool_call>{"name": "now", "arguments": %s</tool_call>'
KIMI = "<|tool_call_begin|>functions.now:0"
NO_CALL_YET = f"<|tool_calls_section_begin|>{KIMI}"
CITY = "<tool_call>\n<function=get_weather>\n<parameter=city>%s</function>\n</tool_call>"
GLM_CITY = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>%s</tool_call>"
TO = "<|channel|>commentary to="
# Family, output -> content, reasoning and calls: their arguments and whether they are complete
ANSWERS = {
    # What follows a mistake, up to the end of the call, belongs to its arguments
    "malformed": ("hermes", NOW % '{"a": ]}}}', "", "", [('{"a": ]}}}', False)]),
    "malformed JSON": (
        "llama3_json", '{"name": "now", "parameters": {"a": ]}}}', "", "", [('{"a": ]}}}', False)],
    ),
    "malformed, no end": (
        "mistral", '[TOOL_CALLS]now[ARGS]{"a": no}', "", "", [('{"a": no}', False)],
    ),
    "a call after a malformed one": (
        "hermes", "Well." + NOW % '{"a": ]}}' + CALL + "Done.", "Well.Done.", "",
        [('{"a": ]}}', False), ('{"city": "Paris"}', True)],
    ),
    # Wrong brackets after the arguments are not content, and the call is complete
    "bracket": ("hermes", NOW % "{}}}}", "", "", [("{}", True)]),
    "other bracket": ("hermes", NOW % "{}]}", "", "", [("{}", True)]),
    "no bracket": ("hermes", NOW % "{}", "", "", [("{}", True)]),
    "bracket in a list": (
        "granite", '<|tool_call|>[{"name": "now", "arguments": {}}}]', "", "", [("{}", True)],
    ),
    "bracket alone": (
        "llama3_json", '{"name": "now", "parameters": {}}}', "", "", [("{}", True)],
    ),
    "bracket before a marker": (
        "kimi_k2", KIMI + "<|tool_call_argument_begin|>{}}<|tool_call_end|>", "", "",
        [("{}", True)],
    ),
    "white space around reasoning and calls": (
        "qwen3", f"<think>\n\n</think>\n\n\n{CALL}\n{CALL}\n", "", "",
        [('{"city": "Paris"}', True)] * 2,
    ),
    "white space between texts": (
        "hermes", f"One.\n\n{CALL}\n\nTwo.\n", "One.\n\nTwo.\n", "",
        [('{"city": "Paris"}', True)],
    ),
    "reasoning between calls": (
        "qwen3", f"<think>a</think>{CALL}<think>b</think>{CALL}c", "c", "ab",
        [('{"city": "Paris"}', True)] * 2,
    ),
    # Only a special token starts reasoning within text
    "reasoning within text": (
        "command_r7b", "Hi.<|START_THINKING|>a<|END_THINKING|>b", "Hi.b", "a", [],
    ),
    "a marker within text": (
        "qwen3", "Hi.<think>a</think>b", "Hi.<think>a</think>b", "", [],
    ),
    "a call that ends reasoning, after what only looks like one": (
        "kimi_k2",
        f"<think>a {NO_CALL_YET} b{NO_CALL_YET}<|tool_call_argument_begin|>{{}}<|tool_call_end|>c",
        "c", f"a {NO_CALL_YET} b", [("{}", True)],
    ),
    "a call before the end of reasoning": (
        "qwen3_xml", "<think>\na\n" + CITY % "Paris</parameter>" + "\n</think>\n\nb</think>",
        "b", "a", [('{"city":"Paris"}', True)],
    ),
    "a call without the end of reasoning": (
        "glm45", "<think>a <tool_call> b" + GLM_CITY % "Paris</arg_value>", "", "a <tool_call> b",
        [('{"city":"Paris"}', True)],
    ),
    # A section or list without calls is not shown
    "no calls in a list": ("granite", "<|tool_call|>[] Hi.", "Hi.", "", []),
    "no calls in a list of text": ("json", "[]", "[]", "", []),
    "no calls in a list of Python": (
        "llama4_pythonic", "<|python_start|>[]<|python_end|>", "", "", [],
    ),
    "no calls on lines": ("olmo3", "Hi.<function_calls>\n</function_calls>", "Hi.", "", []),
    "no calls in a section": (
        "kimi_k2", "Hi.<|tool_calls_section_begin|>\n<|tool_calls_section_end|>", "Hi.", "", [],
    ),
    "no calls in a section of tags": (
        "minimax_m2", "</think><minimax:tool_call>\n</minimax:tool_call>Hi.", "Hi.", "", [],
    ),
    "the other spelling of a section": (
        "kimi_k2",
        f"<|tool_call_section_begin|>{KIMI}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_call_section_end|>", "", "", [("{}", True)],
    ),
    "bare calls in a list": (
        "llama3_json", '[{"name": "now", "parameters": {}}]', "", "", [("{}", True)],
    ),
    # Without the end of its value, a call ends where nothing but calls follow it
    "no end of a value": (
        "qwen3_coder", CITY % "\nParis\n" * 2, "", "", [('{"city":"Paris"}', True)] * 2,
    ),
    "no end of a last value": ("glm45", GLM_CITY % "Paris", "", "", [('{"city":"Paris"}', True)]),
    "a call quoted in a value": (
        "qwen3_coder", CITY % (CITY % "b" + " c</parameter>"), "", "",
        [(json.dumps({"city": CITY % "b" + " c"}, separators=(",", ":")), True)],
    ),
    # Headers of gpt-oss
    "no arguments": ("gpt_oss", f"{TO}functions.now<|message|><|call|>", "", "", [("{}", True)]),
    "no arguments and no end": ("gpt_oss", f"{TO}functions.now<|message|>", "", "", [("{}", True)]),
    "no namespace": ("gpt_oss", f"{TO}now<|message|>{{}}<|call|>", "", "", [("{}", True)]),
    "another recipient": ("gpt_oss", f"{TO}user<|message|>{{}}<|end|>", "{}", "", []),
    "a header without a message": (
        "gpt_oss",
        "<|channel|>final??<|end|><|start|>assistant<|channel|>analysis<|message|>a<|end|>",
        "", "a", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "text", "content", "reasoning", "calls"), ANSWERS.values(), ids=ANSWERS
)
def test_answer(family: str, text: str, content: str, reasoning: str, calls: object) -> None:
    """What an odd output means, character by character."""

    answer = replay(parser(family), [*text])

    assert (answer.content, answer.reasoning) == (content, reasoning)
    assert [(call.arguments, call.complete) for call in answer.calls] == calls


def test_truncated_call_without_arguments_is_incomplete() -> None:
    """A model that was stopped behind the header had not said that there are none."""

    text = f"{TO}functions.now<|message|>"
    [call] = replay(parser("gpt_oss"), [text], truncated=True).calls

    assert (call.arguments, call.complete) == ("", False)


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
