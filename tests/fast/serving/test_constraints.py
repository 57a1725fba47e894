"""The constraint built from a request. tests/vllm checks what its grammar accepts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from openai_frontend.errors import InvalidRequest
from openai_frontend.generation import StructuredOutputs
from openai_frontend.parsing.family import TEXT
from openai_frontend.parsing.output_format import ExternalParser, OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.constraints import grammar, key_value, plugin
from openai_frontend.serving.constraints.family_tags import JSON_TAGS, TAGS
from openai_frontend.serving.constraints.grammar import constraint, is_slow_to_build
from openai_frontend.serving.constraints.json_schema import MAX_PARTS
from openai_frontend.serving.constraints.plugin import ConstraintPlugin, LogitsProcessor
from openai_frontend.serving.request.sampling import NO_CONSTRAINT, Constraint
from openai_frontend.serving.request.tools import NO_TOOLS, CustomFormat, Tools
from schemas.chat_completions import ChatCompletionRequest
from schemas.sampling import SamplingFields
from tests.cpu_time import budget
from tests.fast.parsing.samples import complete

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTIONS: Mapping[str, Any] = {"f": SCHEMA, "g": {"type": "object"}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TEXT_READING = OutputFormat(family=TEXT)


def tools(**given: Any) -> Tools:
    names = given.get("functions", FUNCTIONS)
    fields = {
        "functions": names,
        "choice": "auto",
        "allowed": frozenset(names),
        "places": {name: f"tools[{i}].function.parameters" for i, name in enumerate(names)},
    }
    return Tools(**{**fields, **given})


def held(
    family: str = "hermes", offered: Tools = NO_TOOLS, opened: bool | None = None, **fields: Any
) -> Constraint:
    messages = [{"role": "user", "content": "hi"}]
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **fields})
    reading = OutputFormat(family=BY_NAME[family])
    return constraint(request, offered, reading, reasoning_open=opened)


def form_text(given: Constraint) -> str:
    assert given.structured is not None
    return given.structured.structural_tag or ""


def form_of(given: Constraint) -> Any:
    assert given.structured is not None
    return json.loads(given.structured.structural_tag or "")["format"]


def test_unconstrained_request_gets_the_shared_no_constraint():
    assert held() is NO_CONSTRAINT
    assert held(response_format={"type": "text"}) is NO_CONSTRAINT


def test_auto_is_unconstrained_by_default():
    """A strict function, a response format or a limit on calls would add a constraint."""
    assert held(offered=tools()) is NO_CONSTRAINT


def test_format_reaches_the_engine_unchanged_without_reasoning():
    given = held(response_format=FORM)

    assert given.structured == StructuredOutputs(json=SCHEMA)
    assert given.param == "response_format"
    assert given.field_names == {"structured_outputs": "response_format.json_schema.schema"}


def test_open_reasoning_ends_before_the_format():
    thought, _gap = form_of(held("qwen3", opened=True, response_format=FORM))["elements"][0][
        "elements"
    ]

    assert (thought["begin"], thought["end"]) == ("", "</think>")


@pytest.mark.parametrize(
    ("family", "opened", "kind"),
    [
        ("qwen3", False, "optional"),
        ("qwen3", None, "optional"),
        ("minimax_m2", None, "sequence"),
        ("mistral", False, "optional"),
    ],
)
def test_reasoning_before_the_format(family, opened, kind):
    """It is optional if the model opens it, and required if the model begins inside it."""
    parts = form_of(held(family, opened=opened, response_format=FORM))["elements"]

    assert parts[0]["type"] == kind


def test_prompt_that_ended_the_reasoning_needs_none():
    """The rule holds for a model that otherwise begins inside its reasoning."""
    given = held("minimax_m2", opened=False, response_format=FORM)

    assert given.structured == StructuredOutputs(json=SCHEMA)


def test_external_reasoning_parser_refuses_constraints_while_reasoning_is_open():
    """The server does not know how the reasoning of such a parser ends."""
    foreign = ExternalParser(name="x", make=lambda *_: None, tools=False, reasoning=True)  # type: ignore[arg-type]
    reading = OutputFormat(family=TEXT, external=foreign)
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": FORM}
    )

    assert constraint(request, NO_TOOLS, reading, reasoning_open=False).structured is not None
    with pytest.raises(InvalidRequest) as refused:
        constraint(request, NO_TOOLS, reading, reasoning_open=True)
    assert refused.value.param == "response_format"


def test_required_calls_use_the_tags_of_the_family():
    given = held(offered=tools(choice="required"))

    assert (given.forced, given.any_call) == (None, False)
    assert given.param == "tool_choice"
    assert form_of(given)["at_least_one"] is True
    assert form_of(given)["tags"][0]["begin"] == '<tool_call>\n{"name": "f", "arguments": '


def test_required_calls_are_a_json_array_without_a_grammar_for_the_family():
    """The parser gets `any_call`, so it reads the array."""
    given = held("gemma4", tools(choice="required"), opened=True)

    assert (given.forced, given.any_call) == (None, True)


def test_named_function_is_its_json_arguments_without_a_grammar_for_the_family():
    """The parser gets the function's name in `forced`."""
    given = held("gemma4", tools(choice="required", allowed=frozenset({"f"})), opened=True)

    assert (given.forced, given.any_call) == ("f", False)
    assert form_of(given)["elements"][-1]["json_schema"] == SCHEMA


@pytest.mark.parametrize(
    ("changed", "needed", "param"),
    [
        ({"parallel": False}, False, "parallel_tool_calls"),
        ({"allowed": frozenset({"f"})}, False, "tools"),
        ({"strict": frozenset({"g"})}, True, "tools[1].function.strict"),
        ({"strict": frozenset({"g"}), "parallel": False}, True, "tools[1].function.strict"),
        ({"strict": frozenset({"g"}), "allowed": frozenset({"f"})}, False, "tools"),
        ({"choice": "required"}, True, "tool_choice"),
        ({"choice": "required", "legacy": True}, True, "function_call"),
    ],
    ids=str,
)
def test_constraint_names_the_field_that_requires_it(changed, needed, param):
    """It is not `needed` if the parser of the answer enforces the field too."""
    given = held(offered=tools(**changed))

    assert (given.structured is not None, given.needed, given.param) == (True, needed, param)


def test_only_allowed_functions_are_in_the_grammar():
    """`allowed_tools` excludes the other functions."""
    form = form_of(held(offered=tools(allowed=frozenset({"g"}))))

    assert len(form["tags"]) == 1
    assert '"g"' in form["tags"][0]["begin"]


def test_schema_numbers_of_the_engine_map_to_request_fields():
    strict = frozenset({"f", "g"})
    given = held(offered=tools(strict=strict), response_format=FORM)

    assert given.field_names == {
        "structured_outputs": "response_format",
        "structured_outputs.schemas[0]": "tools[0].function.parameters",
        "structured_outputs.schemas[1]": "tools[1].function.parameters",
        "structured_outputs.schemas[2]": "response_format.json_schema.schema",
    }


LOOSE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize("strict", [True, False])
def test_unsupported_keywords_are_dropped_unless_strict(strict):
    """Only strict functions keep keywords that no grammar enforces."""
    offered = tools(
        functions={"f": LOOSE},
        choice="required",
        strict=frozenset({"f"} if strict else ()),
    )
    schema = form_of(held(offered=offered))["tags"][0]["content"]["json_schema"]

    assert ("uniqueItems" in schema["properties"]["a"]) == strict


NESTED = (
    '{"const": ' + "[" * 1000 + "]" * 1000 + "}"
)  # the limits on a request's JSON do not apply inside of a string
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("gemma4", {"strict": frozenset({"g"})}, {}, "tools[1].function.strict"),
    ("gemma4", {}, {"response_format": FORM}, "response_format"),
    ("hermes", {"strict": frozenset("f"), "functions": {"f": {"type": "array"}}}, {}, "{}.type"),
    (
        "hermes",
        {
            "strict": frozenset("f"),
            "functions": {"f": {"properties": {"x": {"$ref": "http://x"}}}},
        },
        {},
        "{}.properties.x.$ref",
    ),
    (
        "qwen3",
        {},
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "structured_outputs",
    ),
    (
        "qwen3",
        {},
        {"structured_outputs": {"structural_tag": "{"}},
        "structured_outputs.structural_tag",
    ),
    (
        "qwen3",
        {},
        {"structured_outputs": {"structural_tag": f'{{"format": {NESTED}}}'}},
        "structured_outputs",
    ),
    ("qwen3", {}, {"guided_json": NESTED}, "guided_json.const"),
    ("gpt_oss", {"choice": "none"}, {"guided_json": NESTED}, "guided_json.const"),
]


@pytest.mark.parametrize(("family", "changed", "fields", "param"), REFUSED)
def test_unsupported_constraint_is_refused_by_its_path(family, changed, fields, param):
    with pytest.raises(InvalidRequest) as refused:
        held(family, tools(**changed), opened=True, **fields)

    assert refused.value.param == param.format("tools[0].function.parameters")


def one_function(schema: Mapping[str, Any]) -> Tools:
    return tools(functions={"f": schema}, choice="required")


@pytest.mark.parametrize("family", ["qwen3_coder", "pythonic"])
@pytest.mark.parametrize("properties", [8, 60])
def test_definitions_are_copied_into_the_grammar_of_each_argument(family, properties):
    """Beyond a limit on the copies, the call is constrained to JSON instead."""
    definitions = {f"d{i}": {"type": "integer"} for i in range(1000)}
    names = [f"p{i}" for i in range(properties)]
    schema = {
        "type": "object",
        "properties": {name: {"$ref": "#/$defs/d0"} for name in names},
        "required": names,
        "$defs": definitions,
    }

    structured = held(family, one_function(schema)).structured

    copies = properties if properties == 8 else 1
    assert structured.structural_tag.count('"d999"') == copies


def test_only_arguments_with_references_get_the_definitions():
    """Otherwise a schema of 200 KB would produce a grammar of gigabytes."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"type": "integer"}},
    }

    structured = held("qwen3_coder", one_function(schema)).structured

    assert structured.structural_tag.count('"$defs"') == 1


def test_schemas_of_all_functions_share_one_size_limit():
    """Without it, one request could delay the others while the server checks its schemas."""
    wide = {"type": "object", "properties": {"a": {"anyOf": [{}] * (MAX_PARTS // 2)}}}

    with pytest.raises(InvalidRequest) as refused:
        held(offered=tools(functions={"f": wide, "g": wide}, strict=frozenset("fg")))

    assert refused.value.param == "tools"


def test_functions_beyond_the_size_limit_take_any_arguments_unless_strict():
    wide = {"type": "object", "properties": {"a": {"anyOf": [{}] * (MAX_PARTS // 2)}}}

    tags = form_of(held(offered=tools(functions={"f": wide, "g": wide}, choice="required")))["tags"]

    assert [tag["content"]["json_schema"] for tag in tags] == [wide, {"type": "object"}]


def test_grammar_beyond_the_size_limit_is_refused(monkeypatch):
    """Small schemas can multiply into a large grammar."""
    monkeypatch.setattr(grammar, "MAX_TAG_CHARACTERS", 100)

    with pytest.raises(InvalidRequest) as refused:
        held(offered=tools(choice="required"))

    assert refused.value.param == "tool_choice"


def test_schema_of_an_unconstrained_function_is_not_checked():
    assert held(offered=tools(functions={"f": {"$ref": "http://x"}})) is NO_CONSTRAINT


def custom(definition: str, syntax: Any = "lark") -> Tools:
    form = CustomFormat(type="grammar", syntax=syntax, definition=definition)
    return tools(
        functions={"c": SCHEMA}, custom={"c": form}, places={"c": "tools[0].custom.format"}
    )


@pytest.mark.parametrize(
    "definition",
    [
        'start: /[^"]+/',
        r"start: /\s/",
        "start: /[ -~]+/",
        r"start: /[\--z]/",
        r"start: /\p{P}/",
        'start: " ".."~"',
        r'start: "A".."\u005d"',
        "root ::= [!-~]+",
        '%import common.ESCAPED_STRING\nstart: "a"',
        '%import python.NAME\nstart: "a"',
        '%declare A\nstart: "a"',
        r'start: "\q"',
        'start: "a',
        "start: /a",
        r"start: /\a/",
        "start: /[[:punct:]]/",
        "start: /[[:^alpha:]]/",
        "start: /[[a].]/",
        r"start: /[a\][b].]/",
        "start: /(?s:.)/",
        "start: /(?i)./",
        'start: A\nA: ~"a"',
        "start: <|im_end|>",
    ],
)
def test_custom_grammar_that_json_would_escape_is_refused(definition):
    """The error has the reason."""
    with pytest.raises(InvalidRequest) as refused:
        held(offered=custom(definition))

    assert refused.value.param == "tools[0].custom.format.grammar.definition"


@pytest.mark.parametrize("sign", ['"', "/"])
def test_unterminated_custom_grammar_takes_linear_time(sign):
    """With quadratic time, 64 KiB took 30 s."""
    begun_s = process_time()
    with pytest.raises(InvalidRequest):
        held(offered=custom(f"start: {sign}" + f"\\{sign}" * 32_000))

    assert process_time() - begun_s < budget(0.5)


def test_custom_grammar_is_escaped_for_a_json_string():
    """The result has escaped quotes and no comments."""
    given = held(offered=custom('start: "say \\"" W "\\"" // why\nW: /[a-z]+/'))
    text = form_of(given)["tags"][0]["content"]["elements"][1]["grammar"]

    assert text == 'start: "say \\\\\\"" W "\\\\\\"" \nW: /[a-z]+/'


_IN_LINE = r'(?:[^"\\\x00-\x1f]|\\["\\bfrt])'


@pytest.mark.parametrize(
    ("definition", "escaped"),
    [
        ("start: /(.*)x/", f"start: /({_IN_LINE}*)x/"),
        (r"start: /[^\n]+/", f"start: /{_IN_LINE}+/"),
        (r"start: /a\.b/", r"start: /a\.b/"),
        ("start: /.+/s", "start: /" + _IN_LINE.replace("bfrt", "bfnrt") + "+/s"),
        ("start: A\n%import common.LF -> A", 'start: A\nA: "\\\\n"'),
        ("start: INT\n%import common (INT, CR)",
         'start: INT\nINT: ("0".."9")+\nCR: "\\\\r"'),
        ("start: CR\n%import common.CR // why\r\n", 'start: CR\nCR: "\\\\r"\n'),
        ("start: /.b/i", f"start: /{_IN_LINE.replace('?:', '?-i:')}b/i"),
        ('start: "a\\nb"i', 'start: ("a"i "\\\\n" "b"i)'),
        ("start: /[.a]./", f"start: /[.a]{_IN_LINE}/"),
        ("start: /[].]/", "start: /[].]/"),
        ("start: /[[:alpha:].]/", "start: /[[:alpha:].]/"),
        ('start: "a" ~ 3', 'start: "a" ~ 3'),
    ],
)  # fmt: skip
def test_custom_grammar_may_have_any_character_and_imports(definition, escaped):
    """Codex's grammar of patches has both. A line break is no character of a line."""
    given = held(offered=custom(definition))
    assert form_of(given)["tags"][0]["content"]["elements"][1]["grammar"] == escaped


def test_every_tag_belongs_to_a_family_with_tools():
    for name in {*TAGS, *JSON_TAGS}:
        assert BY_NAME[name].tools is not None


class Plugin(ConstraintPlugin):
    name = "mine"

    def __init__(self, answer: StructuredOutputs | LogitsProcessor | None) -> None:
        self.answer = answer

    def constraint(self, request: SamplingFields) -> StructuredOutputs | LogitsProcessor | None:
        return self.answer


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch):
    def install(*answers: StructuredOutputs | LogitsProcessor | None) -> None:
        plugins = tuple(map(Plugin, answers))
        monkeypatch.setattr(plugin, "installed", lambda: plugins)

    return install


def test_plugin_constraint_composes_with_reasoning(plug_in):
    """It behaves like a constraint of the request."""
    plug_in(None, StructuredOutputs(regex="a+"), StructuredOutputs(regex="b"))

    assert held().structured == StructuredOutputs(regex="a+")
    assert form_of(held("qwen3", opened=True))["elements"][1]["pattern"] == "a+"


def test_plugin_constraint_conflicts_with_a_response_format(plug_in):
    """One answer cannot have two formats."""
    plug_in(StructuredOutputs(regex="a+"))

    with pytest.raises(InvalidRequest, match="'mine'") as refused:
        held(response_format=FORM)
    assert refused.value.param == "response_format"


def test_plugin_can_name_a_logits_processor(plug_in):
    """Its name and arguments reach the engine next to any other constraint."""
    plug_in(LogitsProcessor(name="mask", arguments={"characters": "abc"}))

    alone, with_form = held(), held(response_format=FORM)

    assert alone.extra_args == {"logits_processor": "mask", "characters": "abc"}
    assert alone.structured is None
    assert replace(with_form, extra_args={}) == Constraint(
        structured=StructuredOutputs(json=SCHEMA),
        param="response_format",
        field_names={"structured_outputs": "response_format.json_schema.schema"},
    )


def test_plugin_without_an_answer_changes_nothing(plug_in):
    plug_in(None)

    assert held() == NO_CONSTRAINT


def held_by_a_schema(offered: Tools, family: str = "hermes") -> Constraint:
    """The constraint for a model that does not accept structural tags, such as TensorRT-LLM's."""
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    )
    reading = OutputFormat(family=BY_NAME[family])
    return constraint(request, offered, reading, reasoning_open=None, supports_tags=False)


def test_named_function_as_a_schema_is_its_arguments_alone():
    given = held_by_a_schema(tools(choice="required", allowed=frozenset("f")))

    assert given.structured == StructuredOutputs(json=SCHEMA)
    assert given.forced == "f"
    assert given.field_names == {"structured_outputs": "tool_choice"}


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_as_a_schema_are_an_array(parallel):
    """The parser expects an array of calls."""
    offered = tools(choice="required", parallel=parallel)
    given = held_by_a_schema(offered)

    assert given.any_call
    assert given.structured is not None
    assert isinstance(given.structured.json, Mapping)
    validator = Draft202012Validator(given.structured.json)
    call, other = {"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}
    assert validator.is_valid([call])
    assert validator.is_valid([call, other]) == parallel
    for wrong in ([], [{"name": "h", "parameters": {}}], [{"name": "f", "parameters": {"a": "x"}}]):
        assert not validator.is_valid(wrong)
    reader = OutputFormat(family=BY_NAME["hermes"]).parser(
        offered.functions, prompt=None, any_call=True
    )
    begun = [each for each in complete(reader, json.dumps([call])) if hasattr(each, "name")]
    assert [each.name for each in begun] == ["f"]


def test_constraints_beyond_a_schema_need_a_structural_tag():
    """Reasoning before a call, grammars of custom tools, and references need one. A model
    without structural tags refuses them by the field.
    """
    referring = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
    thinking = held_by_a_schema(tools(choice="required"), family="deepseek_r1")
    two = held_by_a_schema(tools(choice="required", functions={"f": referring, "g": SCHEMA}))

    for given in (thinking, two):
        assert given.structured is not None
        assert given.structured.structural_tag is not None
        assert given.param == "tool_choice"


OPTIONAL_TEXT = {
    "type": "object",
    "properties": {"note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
}


@pytest.mark.parametrize("family", ["deepseek_v32", "minimax_m2", "pythonic", "hermes"])
@pytest.mark.parametrize(
    "asks", [{"parallel": False}, {"allowed": frozenset("f")}, {"strict": frozenset("g")}], ids=str
)
def test_auto_needs_only_the_name_of_a_function_that_is_not_strict(family, asks):
    """Its schema cannot be a reason to refuse the request, so it is not part of the grammar."""
    functions = {"f": {"type": "object", "properties": {"odd": OPTIONAL_TEXT}}, "g": SCHEMA}

    given = form_text(held(family, tools(**{"functions": functions, **asks})))

    assert ('"f' in given or "=f" in given or "f(" in given, "odd" in given) == (True, False)


def test_strict_function_that_no_grammar_expresses_is_refused():
    offered = tools(functions={"f": OPTIONAL_TEXT}, strict=frozenset("f"))

    with pytest.raises(InvalidRequest, match="can only be constrained if 'tool_choice'") as refused:
        held("deepseek_v32", offered)

    assert refused.value.param == "tools[0].function.strict"


@pytest.mark.parametrize("bound", ["1", 1.5, -1, True, [1]])
def test_text_length_that_is_no_count_is_refused_by_path(bound):
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": bound}}}
    offered = tools(functions={"f": schema}, choice="required", strict=frozenset("f"))

    with pytest.raises(InvalidRequest, match="expected an integer >= 0") as refused:
        held("glm45", offered)

    assert refused.value.param == "tools[0].function.parameters.properties.a.minLength"


def test_repeated_parts_are_bounded_for_all_functions_together(monkeypatch):
    """Python arguments repeat what may follow each optional one. 240 functions with 64 optional
    arguments each made 25 MB; the JSON form, which repeats nothing, replaces them.
    """
    dumped = 0

    def dumps(part: Any) -> bytes:
        nonlocal dumped
        dumped += 1
        return orjson.dumps(part)

    monkeypatch.setattr(key_value, "orjson", SimpleNamespace(dumps=dumps))
    optional = {f"argument_{i}": {"type": "integer"} for i in range(64)}
    functions = {f"f{i}": {"type": "object", "properties": optional} for i in range(240)}
    wanted = held("pythonic", tools(functions=functions, choice="required"))

    assert wanted.any_call or '"parameters"' in form_text(wanted)
    assert 1 < dumped < 20


@pytest.mark.parametrize(
    ("asks", "long"),
    [({"choice": "required"}, True), ({"parallel": False}, True), ({}, False)],
)
def test_grammars_of_large_tools_take_long(asks, long):
    """They are built in a thread: 256 functions took 0.3 s of the event loop."""
    many = {f"p{i}": {"type": "string"} for i in range(60)}
    large = {f"f{i}": {"type": "object", "properties": many} for i in range(100)}

    assert is_slow_to_build(tools(functions=large, **asks)) == long
    assert not is_slow_to_build(tools(**asks))


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder"])
def test_schema_of_another_value_leaves_all_arguments_possible(family):
    """As those of a function that is not strict with "auto"."""
    odd = held(family, tools(functions={"f": {"type": "array"}}, choice="required"))
    auto = held(family, tools(functions={"f": {}}, strict=frozenset(), parallel=False))

    assert form_of(odd)["tags"][0]["content"] == form_of(auto)["tags"][0]["content"]
