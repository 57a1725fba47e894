"""Answers that the engine's grammar backends allow, at random: each is complete and valid."""

import json
import re
import time
from typing import Any

import jsonschema
import pytest

from tests.vllm.constrained_answers import held, offered
from tests.vllm.grammar_walk import walker

pytestmark = pytest.mark.engine


def given(**constraint: Any) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(**constraint)


def of(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


BOUNDED = [
    of(n={"type": "integer", "multipleOf": 2, "maximum": 10**6, "minimum": 0}),
    of(a={"type": "string", "pattern": "^[a-z-]+$", "maxLength": 39}),
    of(a={"type": "string", "format": "date", "pattern": r"^\d{4}-\d\d-\d\d$"}, b={"enum": [1, 2]}),
    of(a={"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}], "maxLength": 9}),
    {**of(a={"enum": [1]}, b={"enum": [2]}), "required": [], "anyOf": [{"required": ["b"]}]},
    of(a={"type": "array", "items": {"multipleOf": 3}, "maxItems": 3}),
]


@pytest.mark.parametrize("schema", BOUNDED, ids=str)
def test_llguidances_answers_have_at_most_one_space_between_parts(schema):
    """A model that has started with white space has nowhere to go but on with the answer."""
    walk = walker()
    grammar = walk.grammar(given(json={**schema, "x-guidance": {"whitespace_flexible": True}}))

    for seed in range(20):
        text = walk.walk(grammar, seed)
        jsonschema.validate(json.loads(text), schema)
        spaced, compact = (
            json.dumps(json.loads(text), ensure_ascii=False, separators=separators)
            for separators in ((", ", ": "), (",", ":"))
        )
        assert len(compact) <= len(text) <= len(spaced)


PATTERNS = [
    r"^(?!a)[ab]$",
    r"^(?=.*\d)[a-z\d]{4}$",
    r"^[\r\n]$",
    r"^\x09$",
    '^["]$',
    r"^\x22$",
    r"^[\\]$",
    r"^[\x00-\x1f]{1,3}$",
    r"^a\x0ab$",
    r"\0",
    r"\x01",
    r"\x1f",
    r"[\b]",
    r"\v",
    r"^\x41b$",
    r"^\x2fe$",
    r"^[\x30-\x39a-f]{2}$",
    r"(?i)abc",
    r"a{3,200}",
    r"^https?://",
    r"^[^a]{1,4}$",
    r"^ü$",
    "^[😀-😂]$",
    r"^(a|a{1,2})$",
    r"\\n[\w-.]",
    r"^GET|^POST$",
    r"^[^\W\d_]{2}$",
    r"^.{1,3}$",
    r"^\/\w{1,3}\.md$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_match_their_pattern(pattern):
    """Whichever engine enforces it; characters that JSON escapes come out escaped."""
    walk = walker()
    grammar = walk.grammar(given(json=of(a={"type": "string", "pattern": pattern})))
    python = pattern.replace(r"[\w-.]", r"[\w.-]")

    for seed in range(10):
        assert re.search(python, json.loads(walk.walk(grammar, seed))["a"])


EMAIL = r"^(?!\.)(?!.*\.\.)([\w'+\-.]*)[\w+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


def test_answers_match_zods_pattern_of_email_addresses():
    """It looks ahead for two dots, and stands beside the format."""
    walk = walker()
    address = {"type": "string", "format": "email", "pattern": EMAIL, "maxLength": 40}
    grammar = walk.grammar(given(json=of(a=address)))

    for seed in range(10):
        assert re.search(EMAIL, json.loads(walk.walk(grammar, seed))["a"])


@pytest.mark.parametrize("pattern", PATTERNS[4:8] + PATTERNS[14:22], ids=str)
def test_answers_match_their_regex(pattern):
    """Outside JSON, without the control characters that no answer contains."""
    walk = walker()
    grammar = walk.grammar(given(regex=pattern))

    for seed in range(10):
        assert re.fullmatch(pattern, walk.walk(grammar, seed))


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": r"\0"},
        {"regex": r"^[^\s\S]$"},
        {"choice": ["a\x01"]},
        {"choice": ["a", "\b"]},
        {"grammar": r'root ::= "a\x01"'},
        {"json": of(a={"pattern": r"^[^\s\S]$"})},
    ],
    ids=str,
)
def test_constraint_that_no_text_can_satisfy_is_refused(constraint):
    with pytest.raises(ValueError, match=r"^structured_outputs: .*no (text|answer)"):
        walker().grammar(given(**constraint))


def schema_part(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


CALL = tag('<tool_call>{"name": "f", "arguments": ', schema_part(BOUNDED[1]), "}</tool_call>")
CALLS = {"tags": [CALL], "separator": "\n", "at_least_one": True, "stop_after_first": False}
THOUGHT = tag("<think>", {"type": "regex", "pattern": "[a-z]{1,5}"}, "</think>")
TAGS = [
    ({"type": "sequence", "elements": [THOUGHT, schema_part(BOUNDED[1])]}, "<think>", ""),
    ({"type": "tags_with_separator", **CALLS}, CALL["begin"], CALL["end"]),
    ({"type": "or", "elements": [CALL, CALL]}, CALL["begin"], CALL["end"]),
    ({"type": "optional", "content": CALL}, "", ""),
]


@pytest.mark.parametrize(("form", "begin", "end"), TAGS, ids=str)
def test_structural_tag_with_a_schema_for_llguidance(form, begin, end):
    """Tools and reasoning can be combined with every schema that can be enforced without them. The
    tags' tokens are written as tokens.
    """
    walk = walker()
    text = json.dumps({"type": "structural_tag", "format": form})
    grammar = walk.grammar(given(structural_tag=text))

    for seed in range(10):
        answer = walk.walk(grammar, seed)
        assert answer.startswith(begin)
        assert answer.endswith(end)
        for value in re.findall(r'"a": ?"(.*?)"', answer):
            assert re.fullmatch("[a-z-]{1,39}", value)


def test_text_of_a_structural_tag_contains_no_call_in_pieces():
    """Only the token itself begins a call: its text, written in other tokens, is excluded."""
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [CALL]}
    walk = walker()
    text = json.dumps({"type": "structural_tag", "format": form})
    grammar = walk.grammar(given(structural_tag=text))
    pieces = [walk.tokenizer.convert_tokens_to_ids(each) for each in ("<", "tool")]

    assert grammar.accept_tokens("walk", pieces)
    for piece in walk.tokenizer.encode("_call", add_special_tokens=False):
        assert grammar.accept_tokens("walk", [piece])
    assert walk.tokenizer.convert_tokens_to_ids(">") not in walk.allowed(grammar)


def tag_of(functions: dict[str, Any]) -> str:
    structured = held("hermes", offered(functions)).structured
    assert structured is not None
    return str(structured.structural_tag)


CALL_TEXT = r'<tool_call>\n{"name": "(\w+)", "arguments": (.*?)}\n</tool_call>'


def test_calls_of_many_functions_are_compiled_by_llguidance():
    """xgrammar takes seconds for them."""
    path, mode = {"type": "string", "maxLength": 9}, {"enum": ["read", "write"]}
    parameters = of(path=path, mode=mode, lines={"type": "array", "items": {"type": "integer"}})
    functions = {
        f"function_{number}": {**parameters, "title": str(number)} for number in range(150)
    }
    walk = walker()
    began_s = time.process_time()
    grammar = walk.grammar(given(structural_tag=tag_of(functions)))

    assert time.process_time() - began_s < 2
    for seed in range(5):
        for name, arguments in re.findall(CALL_TEXT, walk.walk(grammar, seed)):
            jsonschema.validate(json.loads(arguments), functions[name])


def test_xgrammar_enforces_objects_of_many_optional_properties():
    """llguidance would fail at the first token of 1,000 of them."""
    names = {f"property_{number}": {"type": "integer"} for number in range(1000)}
    schema = {**of(**names), "required": []}

    answer = json.loads(walker().answer(given(json=schema), 1))

    jsonschema.validate(answer, schema)
    assert answer.keys() <= names.keys()


def test_objects_of_many_optional_properties_are_refused_if_only_llguidance_enforces_them():
    names = {f"property_{number}": {"multipleOf": 2} for number in range(1000)}

    with pytest.raises(ValueError, match="'multipleOf' cannot be enforced"):
        walker().grammar(given(json={**of(**names), "required": []}))


def test_grammars_of_llguidance_are_compiled_once_and_copied():
    walk = walker()
    one, other = (walk.grammar(given(regex="a|a{1,2}|abc")) for _ in range(2))
    (token,) = walk.tokenizer.encode("a", add_special_tokens=False)
    before = walk.allowed(other)

    assert one.accept_tokens("walk", [token])
    assert before == walk.allowed(other) != walk.allowed(one)


LARK = [
    ('start: "a" x\nx: %json ' + json.dumps(BOUNDED[0]), r'a\{"n":( ?)\d+\}'),
    ("start: /a\\x01b/", "a\x01b"),  # xgrammar reads U+01B
    ('start: X "!"\nX: /[A-C]\\d{2}/i', r"[A-Ca-c]\d{2}!"),
    ('%llguidance {}\nstart: "%json {" /[\\/]/ // %json', r"%json \{/"),
    ("start: <|im_end|>", ""),
]


@pytest.mark.parametrize(("grammar", "texts"), LARK, ids=str)
def test_lark_grammars_are_read_as_they_are_written(grammar, texts):
    """With expressions in the common syntax, and at most one space within JSON."""
    walk = walker()
    compiled = walk.grammar(given(grammar=grammar))

    for seed in range(5):
        assert re.fullmatch(texts, walk.walk(compiled, seed))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: "a\\u0001"', "control character"),
        (r"root ::= [\x01-\x02]", "no answer can contain a character"),
        (r"start: /a\b/", "word boundary"),
        ("start: /(?=a)a/", "lookahead"),
        ("start: %json {x", "JSON must follow"),
        ('start: %json {"not": {}}', "not"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "options"),
    ],
)
def test_grammars_that_cannot_be_enforced_are_refused(grammar, reason):
    with pytest.raises(ValueError, match=f"(?s)^structured_outputs: .*{reason}"):
        walker().grammar(given(grammar=grammar))


ENDLESS = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    "constraint",
    [
        {"grammar": "start: A B\nA: /a+/\nB: /ab/"},
        {"grammar": '%llguidance {}\nstart: <|im_start|> x\nx: "b" x'},
        {"json": {**of(a={"$ref": "#/$defs/a"}, b={"multipleOf": 2}), "$defs": {"a": ENDLESS}}},
    ],
    ids=str,
)
def test_engine_survives_a_grammar_without_an_end(constraint):
    """llguidance reads ahead while only one text may follow: the engine never came back."""
    with pytest.raises(TimeoutError, match="no end"):
        walker().answer(given(**constraint), 1, most=20)
