"""Grammars of constrained requests, run by xgrammar and read by the parsers, without a model."""

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from openai_frontend.parsing.events import Event
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.constraints.family_tags import JSON_TAGS, TAGS
from openai_frontend.serving.constraints.grammar import constraint
from openai_frontend.serving.request.sampling import Constraint
from openai_frontend.serving.request.tools import CustomFormat, Tools
from schemas.chat_completions import ChatCompletionRequest
from tests.fast.parsing.samples import complete
from tests.vllm.calls import calls_of
from tests.vllm.random_answers import LLGuidanceAnswers, PossibleAnswers, RandomAnswers

pytestmark = pytest.mark.engine

WEATHER: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["metric", "imperial"]},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "at": {"$ref": "#/$defs/point"},
    },
    "required": ["city", "days", "at"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "weather": WEATHER,
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
}
ANSWER = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}}


def tools(choice: Any = "required", **changed: Any) -> Tools:
    functions: Mapping[str, Any] = changed.pop("functions", SCHEMAS)
    given = {
        "functions": functions,
        "choice": choice,
        "allowed": frozenset(functions),
        "strict": frozenset(functions),
        "places": {name: f"tools[{i}].function.parameters" for i, name in enumerate(functions)},
    }
    return Tools(**{**given, **changed})


def held(
    family: str, offered: Tools, *, reasoning_open: bool | None = None, **fields: Any
) -> Constraint:
    messages = [{"role": "user", "content": "hi"}]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **fields})
    reading = OutputFormat(family=BY_NAME[family])
    return constraint(request, offered, reading, reasoning_open=reasoning_open)


def prepared(given: Constraint) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    from openai_frontend.engines.vllm.grammars.backends import prepare_constraint

    assert given.structured is not None
    tag = given.structured.structural_tag
    return prepare_constraint(StructuredOutputsParams(structural_tag=tag))


def answers(given: Constraint) -> RandomAnswers:
    return RandomAnswers(prepared(given).structural_tag)


def answers_of_either(given: Constraint) -> PossibleAnswers:
    """Return the answers that xgrammar or, where it writes a pattern wrong, llguidance allows."""
    params = prepared(given)
    if params.structural_tag is not None:
        return RandomAnswers(params.structural_tag)
    return LLGuidanceAnswers(params.grammar)


def thought(family: str) -> str:
    """Return the reasoning text that a model of the family writes on its own, if it does."""
    if family == "gpt_oss":
        return (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
            "<|channel|>commentary to=functions."
        )
    reasoning = BY_NAME[family].reasoning
    if reasoning is None or reasoning.starts_inside:
        return ""
    return f"{reasoning.start}hm{reasoning.end}"


def read(family: str, offered: Tools, given: Constraint, text: str) -> list[Event]:
    """Parse the answer to a prompt that has closed any reasoning."""
    reading = OutputFormat(family=BY_NAME[family])
    prompt = reading.family.reasoning.end if reading.family.reasoning else ""
    parser = reading.parser(
        offered.functions, prompt=prompt, forced=given.forced, any_call=given.any_call
    )
    return complete(parser, text)


@pytest.mark.parametrize("family", sorted({*TAGS, *JSON_TAGS, "gemma4", "gpt_oss"}))
def test_required_calls_are_parsed_and_valid(family):
    """The family's parser reads whatever the grammar of required calls allows as calls, and their
    arguments match their schemas.
    """
    offered = tools()
    given = held(family, offered, reasoning_open=False)
    possible = answers(given)

    for seed in range(12):
        text = possible.make(seed, begin=thought(family))
        calls = calls_of(read(family, offered, given, text))
        assert calls, text
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])


TEXT_FAMILIES = sorted(TAGS.keys() - {"llama4_pythonic", "pythonic"})


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_auto_allows_text_and_enforces_strict_calls(family):
    """With `tool_choice: auto` a model may answer in text; a call in the text must match its
    schema.
    """
    given = held(family, tools("auto"), reasoning_open=False)
    possible = answers(given)
    call = answers(held(family, tools(), reasoning_open=False)).make(1, begin=thought(family))
    trigger = TAGS[family][0].trigger

    assert possible.takes("Hello.")
    assert possible.takes(call)
    assert not possible.begins(f"{trigger}nonsense")


@pytest.mark.parametrize("family", sorted({*TAGS, *JSON_TAGS, "gemma4"}))
def test_parallel_tool_calls_false_allows_one_call(family):
    """In every family, `parallel_tool_calls: false` limits an answer to one call."""
    offered = tools(functions={"f": ANSWER, "g": ANSWER}, parallel=False)
    given = held(family, offered, reasoning_open=False)

    for seed in range(5):
        text = answers(given).make(seed, begin=thought(family))
        assert len(calls_of(read(family, offered, given, text))) == 1, text


def test_named_function_is_called_once():
    """The call has the syntax of the family."""
    possible = answers(held("hermes", tools(allowed=frozenset({"nothing"}))))
    call = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'

    assert possible.takes(call)
    assert not possible.begins(f"{call}\n<tool_call>")
    assert not possible.begins('<tool_call>\n{"name": "weather"')


CALL = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
COMPOSED = [
    ("", True),
    ('{"ok": true}', False),
    ('I think so.</think>\n\n{"ok": true}', True),
    (f"Let me look.</think>\n\n{CALL}", True),
    (f"Let me look.</think>\n\n{CALL}\n{CALL}", True),
    ("So.</think>Yes.", False),
    ('So.</think>{"ok": 1}', False),
    (f'So.</think>{CALL}{{"ok": true}}', False),
]


@pytest.mark.parametrize(("text", "allowed"), COMPOSED)
def test_reasoning_tools_and_response_format_in_one_request(text, allowed):
    """The model reasons, then calls tools or answers in the format; the grammar allows nothing
    else.
    """
    given = held("qwen3", tools("auto"), reasoning_open=True, response_format=FORMAT)
    possible = answers(given)

    assert (possible.takes(text) or (text == "" and possible.begins(text))) == allowed


def test_optional_reasoning():
    """If the prompt leaves reasoning to the model, it reasons or answers at once."""
    possible = answers(held("qwen3", Tools(), reasoning_open=False, response_format=FORMAT))

    assert possible.takes('{"ok": true}')
    assert possible.takes('<think>hm</think>\n\n{"ok": true}')
    assert not possible.takes('hm</think>{"ok": true}')


def test_harmony_uses_messages_for_everything():
    """A response format, a call and reasoning are harmony messages."""
    given = held("gpt_oss", tools("auto"), response_format=FORMAT)
    possible = answers(given)
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"

    assert possible.takes(f'{thought}<|channel|>final<|message|>{{"ok": true}}')
    call = "<|channel|>commentary to=functions.nothing <|constrain|>json<|message|>{}"
    assert possible.takes(thought + call)
    assert not possible.begins('{"ok"')
    assert not possible.begins("<|channel|>final<|message|>Yes")


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[]"),
    ({"structured_outputs": {"regex": "a+b"}}, "aab", "aa"),
    ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
    ({"ebnf": 'root ::= "x" y\ny ::= "z"'}, "xz", "x"),
    ({"guided_grammar": 'start: "a" WORD\nWORD: /[b-d]+/'}, "abc", "a"),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "format": {"type": "regex", "pattern": "q"},
            }
        },
        "q",
        "r",
    ),
]


@pytest.mark.parametrize(("fields", "right", "wrong"), FORMS)
def test_every_constraint_after_reasoning(fields, right, wrong):
    """Each form of the answer combines with reasoning."""
    possible = answers(held("qwen3", Tools(), reasoning_open=True, **fields))

    assert possible.takes(f"hm</think>\n\n{right}")
    assert not possible.takes(f"hm</think>\n\n{wrong}")


REGEX = CustomFormat(type="grammar", syntax="regex", definition=r'[a-z]+ = "\d+"')
PLAIN = CustomFormat(type="grammar", syntax="regex", definition=r"[a-z]+ = \d+")
LARK = CustomFormat(
    type="grammar",
    syntax="lark",
    definition='start: NAME " = " text\ntext: "\\"" NAME "\\""\nNAME: /[a-z]+/',
)
INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("family", ["hermes", "llama4_pythonic", "gemma4"])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [(REGEX, r'[a-z]+ = "\d+"'), (PLAIN, r"[a-z]+ = \d+"), (LARK, r'[a-z]+ = "[a-z]+"')],
)
def test_custom_tool_input_matches_its_grammar(family, form, pattern):
    """The JSON escapes of the input are decoded first."""
    offered = tools(
        functions={"set": INPUT},
        strict=frozenset(),
        custom={"set": form},
        places={"set": "tools[0].custom.format"},
    )
    given = held(family, offered)

    for seed in range(5):
        text = answers_of_either(given).make(seed, begin=thought(family))
        ((name, arguments),) = calls_of(read(family, offered, given, text))
        assert name == "set"
        assert re.fullmatch(pattern, json.loads(arguments)["input"]), text
