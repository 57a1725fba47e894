"""Answers that the engine's grammar backends allow, at random: each is complete and valid."""

import json
import re
import time
from typing import Any

import jsonschema
import pytest

from openai_frontend.serving.request.tools import CustomFormat
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


UNTYPED: list[tuple[dict[str, Any], tuple[type, ...]]] = [
    ({"minimum": 3}, (int, float)),
    ({"exclusiveMaximum": 3}, (int, float)),
    ({"minLength": 2, "maxLength": 4}, (str,)),
    ({"pattern": "^a{1,2}$"}, (str,)),
    ({"format": "date"}, (str,)),
    ({"items": {"enum": [1]}, "maxItems": 3}, (list,)),
    ({"prefixItems": [{"enum": [1]}], "items": False}, (list,)),
    ({"properties": {"a": {"enum": [1]}}}, (dict,)),
    ({"properties": {"a": {"enum": [1]}}, "required": ["a"]}, (dict,)),
    ({"patternProperties": {"^a$": {"enum": [1]}}, "additionalProperties": False}, (dict,)),
    ({"anyOf": [{"pattern": "^a$"}, {"maxLength": 1}]}, (str,)),
]


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(("schema", "kinds"), UNTYPED, ids=str)
def test_schema_without_a_type_is_about_the_type_of_its_keywords(schema, kinds, engine):
    """Values of other types would match too. Both engines leave them out."""
    beside = {"multipleOf": 2, "maximum": 8, "minimum": 0} if engine == "llguidance" else {}
    whole = of(x=schema, y={**beside, "type": "integer"})
    walk = walker()
    grammar = walk.grammar(given(json=whole))

    for seed in range(5):
        value = json.loads(walk.walk(grammar, seed, most=2000))
        jsonschema.validate(value, whole)
        assert isinstance(value["x"], kinds)


def test_no_type_is_added_to_a_schema_that_another_describes_too():
    schema = {"type": "integer", "allOf": [{"maxLength": 2}, {"multipleOf": 2}]}

    assert json.loads(walker().answer(given(json=of(x=schema)), 1))["x"] % 2 == 0


BOUNDS: list[tuple[dict[str, Any], str]] = [
    ({"exclusiveMinimum": 1, "maximum": 1.5}, "1"),
    ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.1}, "0"),
    ({"minimum": -1.5, "exclusiveMaximum": -1}, "-1"),
    ({"allOf": [{"exclusiveMinimum": 10}, {"maximum": 10.5}]}, "10"),
    ({"minimum": 1.00000001, "maximum": 1.00000002}, "1.00000003"),
]


@pytest.mark.parametrize(("bounds", "wrong"), BOUNDS, ids=str)
def test_llguidance_enforces_bounds_of_numbers(bounds, wrong):
    schema = of(x={"type": "number", **bounds}, y={"type": "integer", "multipleOf": 2})
    walk = walker()
    grammar = walk.grammar(given(json=schema))

    tokens = walk.tokenizer.encode(f'{{"x":{wrong},', add_special_tokens=False)
    assert not all(grammar.accept_tokens("walk", [token]) for token in tokens)
    for seed in range(5):
        value = json.loads(walk.answer(given(json=schema), seed))
        jsonschema.validate(value, schema)


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
    r"^([0-9]\x1b|[b-d])$",
    r"^(?!é)[\x00-\x1f]{9}$",
    '^a"b$',
    r"^a\\b\n$",
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
    ("start: X\nX: /[ab]/ & /[bc]/", "b"),
    ('start: X # & "c"\nX: ~/b/ & /[a-c]/', "[ac]"),
    ('start: A "!"\n%import common.INT -> A\n%ignore " "', r" *\d+ *! *"),
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
        ('start: "a" X\nX: /b/ & /c/', "no text matches the terminal X"),
        ('start: "a" x\nx: "c" X\n_Y: "b"\nX: _Y & ~"b"', "no text matches the terminal X"),
        ('start: x\nx[temperature=0.5]: "a"', "line 2: 'temperature'"),
        ('start: x\nx[stop="b"]: /[ab]/', "line 2: 'stop'"),
        ("start: x\nx[max_tokens=2]: /a+/", "line 2: 'max_tokens'"),
        ('start: "a"\n%override x: "b"', r"2\(1\): override"),
        ('start: A\nA.2: "a"', r"2\(6\): priority"),
        ('start: x{"a"}\nx{y}: y', r"2\(7\): params"),
        ('start: "a"\n%declare X', r"2\(1\): declare"),
        ("start: /b/ & /c/", r"1\(8\): & is only supported for tokens"),
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


LARK_FOR_XGRAMMAR = [
    ("start: %json " + json.dumps(of(a={"enum": [1]})), r'\{\s?"a"\s?:\s?1\s?\}'),
    ("start: /[\\p{L}]{1,3}/", r"[^\W\d_]{1,3}"),
    ("start: /[\\x30-\\x39a-f]{2}/", "[0-9a-f]{2}"),
    ("start: /(?!a)[ab]/i", "[bB]"),
]


def after_thinking(grammar: str) -> Any:
    form = {"type": "sequence", "elements": [THOUGHT, {"type": "grammar", "grammar": grammar}]}
    return given(structural_tag=json.dumps({"type": "structural_tag", "format": form}))


@pytest.mark.parametrize(("grammar", "texts"), LARK_FOR_XGRAMMAR, ids=str)
def test_lark_beside_reasoning_is_read_as_alone(grammar, texts):
    """Structural tags are for xgrammar: it would not limit white space, and misread expressions."""
    walk = walker()
    compiled = walk.grammar(after_thinking(grammar))

    for seed in range(5):
        assert re.fullmatch(f"<think>[a-z]{{1,5}}</think>{texts}", walk.walk(compiled, seed))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: /a|a{1,2}/", "ambiguous"),
        ('start: %json {"multipleOf": 2}', "'%json': 'multipleOf'"),
        ("start: X\nX: /b/ & /c/", "line 2"),
        ('root ::= "\\x01"', "control character"),
    ],
)
def test_grammar_that_xgrammar_misreads_is_refused_beside_reasoning(grammar, reason):
    with pytest.raises(ValueError, match=f"^structured_outputs: .*{reason}"):
        walker().grammar(after_thinking(grammar))


def test_schema_for_llguidance_is_refused_beside_a_custom_tools_grammar():
    """The error names both, so that the client can remove one."""
    tools = offered(
        {"f": of(n={"type": "integer", "multipleOf": 2}), "c": of(input={"type": "string"})},
        strict=frozenset("f"),
        custom={"c": CustomFormat(type="grammar", syntax="lark", definition='start: "a" | "b"')},
        places={"f": "tools[0].function.parameters", "c": "tools[1].custom.format"},
    )
    structured = held("hermes", tools).structured
    assert structured is not None

    with pytest.raises(ValueError, match=r"n: 'multipleOf' .* together with a custom tool's"):
        walker().grammar(given(structural_tag=structured.structural_tag))
