"""How one model's answers are read: what it can recognise, and the parser of each answer."""

import time
from dataclasses import replace
from typing import Any

import pytest

from openai_frontend.parsing.events import Schemas
from openai_frontend.parsing.family import TEXT, Family
from openai_frontend.parsing.output_format import PLAIN, ExternalParser, OutputFormat, Variables
from openai_frontend.parsing.parser import FamilyParser, Parser
from openai_frontend.parsing.registry import BY_NAME
from tests.cpu_time import budget
from tests.fast.parsing.samples import TOOLS, Answer, answer

THOUGHT = "Hm, <tool_call>.\n</think>\n\n"
CALL = '<tool_call>{"name": "now", "arguments": {"zone": "CET"}}</tool_call>'
OPEN, CLOSED = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def read(parser: Parser, text: str, size: int) -> Answer:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return answer([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


def said(parser: Parser, text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls."""
    found = read(parser, text, len(text))
    return found.reasoning, found.content, [(call.name, call.arguments) for call in found.calls]


def foreign(row: Family, *, tools: bool, reasoning: bool) -> ExternalParser:
    """One of our own families, given out as a parser from elsewhere."""

    def make(schemas: Schemas, prompt: str | None, variables: Variables) -> FamilyParser:
        is_open = row.reasoning.is_open_after(prompt or "") if row.reasoning else None
        return FamilyParser(row, schemas, reasoning_open=is_open)

    return ExternalParser(name="test", make=make, tools=tools, reasoning=reasoning)


QWEN3, HERMES = BY_NAME["qwen3"], BY_NAME["hermes"]
THINKS_ONLY = replace(QWEN3, tools=None)
ROUTES = {
    "family": OutputFormat(family=QWEN3),
    "foreign": OutputFormat(family=TEXT, external=foreign(QWEN3, tools=True, reasoning=True)),
    "foreign calls": OutputFormat(
        family=THINKS_ONLY, external=foreign(HERMES, tools=True, reasoning=False)
    ),
    "foreign reasoning": OutputFormat(
        family=HERMES, external=foreign(THINKS_ONLY, tools=False, reasoning=True)
    ),
}
every_route = pytest.mark.parametrize("reading", ROUTES.values(), ids=ROUTES)


@pytest.mark.parametrize(
    ("family", "tools", "reasoning", "special_tokens"),
    [
        ("text", False, False, False),
        ("think", False, True, False),
        ("hermes", True, False, False),
        ("qwen3", True, True, False),
        ("llama3_json", True, False, True),
        ("gpt_oss", True, True, True),
    ],
)
def test_what_a_family_recognises(
    family: str, tools: bool, reasoning: bool, special_tokens: bool
) -> None:
    """A format reports what it recognises, and whether it needs special tokens."""

    reading = OutputFormat(family=BY_NAME[family])

    assert (tools, reasoning) == (reading.tools, reading.reasoning)
    assert special_tokens == reading.special_tokens


def test_what_an_external_parser_recognises() -> None:
    """An external parser adds to what the family recognises."""

    calls = OutputFormat(family=TEXT, external=foreign(HERMES, tools=True, reasoning=False))
    thinker = foreign(THINKS_ONLY, tools=False, reasoning=True)
    thoughts = OutputFormat(family=HERMES, external=thinker)

    assert (calls.tools, calls.reasoning, calls.special_tokens) == (True, False, True)
    assert (thoughts.tools, thoughts.reasoning, thoughts.special_tokens) == (True, True, True)


@every_route
def test_reasoning_and_calls(reading: OutputFormat) -> None:
    """Both are recognised, whichever parser handles which."""

    parser = reading.parser(TOOLS, prompt=OPEN)

    assert said(parser, THOUGHT + CALL) == ("Hm, <tool_call>.", "", [("now", '{"zone": "CET"}')])


@every_route
def test_prompt_decides_whether_reasoning_is_open(reading: OutputFormat) -> None:
    """The end of the rendered prompt decides how the output starts."""

    assert reading.parser(TOOLS, prompt=OPEN).in_reasoning
    assert not reading.parser(TOOLS, prompt=CLOSED).in_reasoning
    assert (reading.reasoning_open(OPEN), reading.reasoning_open(CLOSED)) == (True, False)


@every_route
def test_forced_function(reading: OutputFormat) -> None:
    """After the reasoning, the output is only the function's arguments."""

    parser = reading.parser(TOOLS, prompt=OPEN, forced="now")

    assert said(parser, THOUGHT + '{"zone": 1}') == (
        "Hm, <tool_call>.",
        "",
        [("now", '{"zone": 1}')],
    )


@every_route
def test_any_call(reading: OutputFormat) -> None:
    """After the reasoning, the output is an array of calls."""

    parser = reading.parser(TOOLS, prompt=OPEN, any_call=True)
    calls = '[{"name": "now", "parameters": {}}, {"name": "search", "parameters": {"limit": 1}}]'

    assert said(parser, THOUGHT + calls) == (
        "Hm, <tool_call>.",
        "",
        [("now", "{}"), ("search", '{"limit": 1}')],
    )


@every_route
@pytest.mark.parametrize("held", [{}, {"forced": "now"}, {"any_call": True}])
@pytest.mark.parametrize("behind", ["Yes.", CALL, '{"a": 1}', '[{"name": "now"}]', ""])
def test_pieces_make_no_difference(
    reading: OutputFormat, held: dict[str, Any], behind: str
) -> None:
    """Splitting an output does not change its events."""

    text = f"{THOUGHT}{behind} \n"
    whole = said(reading.parser(TOOLS, prompt=OPEN, **held), text)

    for size in range(1, len(text)):
        found = read(reading.parser(TOOLS, prompt=OPEN, **held), text, size)
        calls = [(call.name, call.arguments) for call in found.calls]
        assert whole == (found.reasoning, found.content, calls)


@every_route
def test_without_tools(reading: OutputFormat) -> None:
    """If the request offers no tools, what looks like a call is content."""

    assert said(reading.parser({}, prompt=OPEN), THOUGHT + CALL) == ("Hm, <tool_call>.", CALL, [])


def test_plain_format() -> None:
    """It recognises nothing; everything is content."""

    assert said(PLAIN.parser(TOOLS, prompt=OPEN), THOUGHT + CALL) == ("", THOUGHT + CALL, [])
    assert not PLAIN.tools
    assert not PLAIN.reasoning
    assert not PLAIN.special_tokens
    assert PLAIN.reasoning_open(OPEN) is None


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1"])
@pytest.mark.parametrize(
    ("answer_so_far", "is_open"),
    [
        ("The capital", False),
        ("<think>\nHm.\n</think>\n\nThe capital", False),
        ("<think>\nHm, the", True),
        ("<think>\n", True),
    ],
)
def test_continued_message(family: str, answer_so_far: str, is_open: bool) -> None:
    """If the prompt ends within the message, its markers decide what continues."""

    reading = OutputFormat(family=BY_NAME[family])
    prompt = f"<think>\nEarlier.\n</think>\n\nYes.<|im_start|>assistant\n{answer_so_far}"

    assert reading.reasoning_open(prompt, continued=True) is is_open
    assert reading.parser({}, prompt=prompt, continued=True).in_reasoning is is_open


def test_without_a_prompt() -> None:
    """If the prompt's text is unknown, the output starts as the family's default."""

    assert OutputFormat(family=BY_NAME["deepseek_r1"]).parser({}, prompt=None).in_reasoning
    assert not OutputFormat(family=QWEN3).parser({}, prompt=None).in_reasoning
    assert OutputFormat(family=QWEN3).reasoning_open(None) is None


def test_parsers_are_cheap() -> None:
    """One is created per request: 2 to 8 us, measured, whatever the prompt's length."""

    prompt = "word " * 400_000 + OPEN
    reading = ROUTES["family"]
    seconds = []
    for _ in range(50):
        start = time.process_time()
        for _ in range(20):
            reading.parser(TOOLS, prompt=prompt, any_call=True)
        seconds.append((time.process_time() - start) / 20)

    assert min(seconds) < budget(50e-6)
