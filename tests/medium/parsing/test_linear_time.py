"""The time for a character does not grow with the text, not even with text made to make it."""

import time

import pytest

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.output_format import constrained_to_calls, constrained_to_function
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME
from tests.fast.parsing.samples import TOOLS, complete

pytestmark = pytest.mark.slow  # long texts

HOSTILE = [
    ("hermes", "<tool_call>{"),
    ("hermes", "<tool_call"),
    ("hermes", '<tool_call>{"name":'),
    ("hermes", '<tool_call>{"a":"'),
    ("hermes", '<tool_call>[{"name":"now","arguments":{'),
    ("hermes", " "),
    ("qwen3", "<think>"),
    ("qwen3_coder", "<function=now><parameter=a>"),
    ("qwen3_coder", "<function=now>"),
    ("glm45", "<tool_call>x"),
    ("llama3_json", '{"name":{"name":'),
    ("llama4_pythonic", "[now("),
    ("llama4_pythonic", "["),
    ("pythonic", '[now(a="\\'),
    ("json", "\n{"),
    ("json", '\n{"name":'),
    ("mistral", "[TOOL_CALLS]a"),
    ("deepseek_v32", "<｜DSML｜function_calls>"),  # noqa: RUF001
    ("gemma4", '<|tool_call>call:now{a:<|"|>'),
    ("gpt_oss", "<|channel|>"),
]
CONSTRAINED = [
    (constrained_to_calls(BY_NAME["hermes"]), '[{"name":"now","parameters":{"a":'),
    (constrained_to_calls(BY_NAME["hermes"]), '[{"name":"now"},'),
    (constrained_to_calls(BY_NAME["qwen3"]), "[ "),
    (constrained_to_function(BY_NAME["hermes"], "now"), '{"a":"'),
    (constrained_to_function(BY_NAME["qwen3"], "now"), "{"),
]


def seconds(family: Family | str, unit: str, length: int, piece: int) -> float:
    """CPU time, for the machine may be busy."""
    text = (unit * (length // len(unit) + 1))[:length]
    row = BY_NAME[family] if isinstance(family, str) else family
    parser = FamilyParser(row, TOOLS)
    start = time.process_time()
    for at in range(0, len(text), piece):
        parser.feed(text[at : at + piece])
    parser.finish()
    return time.process_time() - start


@pytest.mark.parametrize(("family", "unit"), [*HOSTILE, *CONSTRAINED])
@pytest.mark.parametrize("piece", [3, 100_000])
def test_ten_times_the_text_takes_about_ten_times_as_long(
    family: Family | str, unit: str, piece: int
) -> None:
    """Whole, and in pieces as small as tokens; also if the request allows only calls."""

    short, long = (seconds(family, unit, length, piece) for length in (10_000, 100_000))

    assert long < 30 * short + 0.1


def test_deep_arguments_end_the_call() -> None:
    """Deeply nested arguments end at a limit and do not nest in the parser."""

    parser = FamilyParser(BY_NAME["hermes"], TOOLS)
    events = complete(parser, '<tool_call>{"name": "now", "arguments": ' + '{"a":' * 100_000)

    expected = ["ToolCallStart", "ToolCallArguments", "ToolCallEnd", "ArgumentsTooLong"]
    assert expected == [type(event).__name__ for event in events]
