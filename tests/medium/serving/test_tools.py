from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.errors import InvalidRequest
from openai_frontend.parsing.family import TEXT
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.dialects.chat_tools import parse_tools
from openai_frontend.serving.request import tools as tools_module
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from openai_frontend.serving.request.tools import (
    NO_TOOLS,
    CustomFormat,
    Tools,
    require_tool_support,
)
from schemas.chat_completions import ChatCompletionRequest
from tests.examples import scaled

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": SCHEMA},
}
NOW = {"type": "function", "function": {"name": "now"}}
CODE = {"type": "custom", "custom": {"name": "code", "description": "runs it"}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
REGEX = {"type": "custom", "custom": {"name": "letters", "format": GRAMMAR}}


def read(policy: str = "reject", **fields: Any) -> Tools:
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "hi"}], **fields
    )
    return parse_tools(request, FieldPolicy(policy))  # type: ignore[arg-type]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    return refused.value


def named(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


NOTHING: list[dict[str, Any]] = [
    {},
    {"tools": []},
    {"tools": None, "tool_choice": None},
    {"tool_choice": "none"},
    {"tool_choice": "auto"},
    {"function_call": "auto", "functions": []},
]


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_request_that_needs_no_tools_gets_no_tools(fields):
    assert NO_TOOLS is read(**fields)


def test_function_keeps_the_schema_of_its_arguments():
    """A function without parameters accepts any object."""
    tools = read(tools=[WEATHER, NOW])

    assert tools.functions == {"weather": SCHEMA, "now": {"type": "object"}}
    assert tools.places == {
        "weather": "tools[0].function.parameters",
        "now": "tools[1].function.parameters",
    }


@pytest.mark.parametrize("choice", [None, "auto", "required"])
def test_tool_choice_defaults_to_auto(choice):
    """The model may call any tool unless `tool_choice` limits it."""
    tools = read(tools=[WEATHER, NOW], tool_choice=choice)

    assert tools.choice == (choice or "auto")
    assert tools.allowed == {"weather", "now"}


CHOICES: list[tuple[Any, str, set[str]]] = [
    (named("now"), "required", {"now"}),
    (named("code", "custom"), "required", {"code"}),
    (allowed("auto", named("now"), named("code", "custom")), "auto", {"now", "code"}),
    (allowed("required", named("weather")), "required", {"weather"}),
]


@pytest.mark.parametrize(("choice", "mode", "names"), CHOICES)
def test_named_tools_are_the_only_ones_shown_to_the_model(choice, mode, names):
    tools = read(tools=[WEATHER, NOW, CODE], tool_choice=choice)

    assert (mode, names) == (tools.choice, tools.allowed)
    assert names == {each["function"]["name"] for each in tools.for_template}


def test_template_gets_functions_without_strict():
    """`strict` is for the engine."""
    strict = {**WEATHER["function"], "strict": True}  # type: ignore[dict-item]

    tools = read(tools=[{"type": "function", "function": strict}, NOW])

    without = {"name": "now", "parameters": {"type": "object", "properties": {}}}
    assert [WEATHER, {"type": "function", "function": without}] == tools.for_template
    assert {"weather"} == tools.strict


def test_custom_tool_is_shown_as_a_function_of_one_text():
    """Its name identifies it in the answer."""
    tools = read(tools=[CODE, REGEX])

    assert {
        "code": CustomFormat(type="text"),
        "letters": CustomFormat(type="grammar", syntax="regex", definition="a+"),
    } == tools.custom
    assert {"code", "letters"} == tools.functions.keys()
    assert tools.functions["code"]["required"] == ["input"]
    told = [each["function"].get("description") for each in tools.for_template]
    assert told == ["runs it", "The input must match this regular expression: a+"]


def test_parallel_calls_are_allowed_by_default():
    """The request can limit them to one."""
    assert read(tools=[NOW]).parallel
    assert not read(tools=[NOW], parallel_tool_calls=False).parallel


def test_legacy_functions_allow_one_call():
    """The answer uses the legacy fields."""
    tools = read(functions=[WEATHER["function"]])

    assert (tools.legacy, tools.parallel, tools.choice) == (True, False, "auto")
    assert (tools.functions, tools.for_template) == ({"weather": SCHEMA}, [WEATHER])
    assert tools.places == {"weather": "functions[0].parameters"}


@pytest.mark.honours("chat.functions.strict")
def test_legacy_functions_can_be_strict():
    assert read(functions=[{"name": "f", "strict": True}, {"name": "g"}]).strict == {"f"}


LEGACY_CHOICES: list[tuple[Any, str]] = [
    ("none", "none"), ("auto", "auto"), ({"name": "weather"}, "required"),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "mode"), LEGACY_CHOICES)
def test_function_call_is_the_legacy_tool_choice(choice, mode):
    tools = read(functions=[WEATHER["function"]], function_call=choice)

    assert tools.choice == mode
    assert tools.allowed == {"weather"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": named("now")}, "tool_choice"),
    ({"tools": [], "tool_choice": allowed("auto", named("now"))}, "tool_choice"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"tools": [NOW], "function_call": {"name": "now"}}, "function_call"),
    ({"functions": [{"name": "f"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [NOW], "functions": [{"name": "f"}]}, "functions"),
    ({"tools": [NOW], "tool_choice": named("other")}, "tool_choice.function.name"),
    ({"tools": [NOW], "tool_choice": named("now", "custom")}, "tool_choice.custom.name"),
    ({"tools": [CODE], "tool_choice": named("code")}, "tool_choice.function.name"),
    (
        {"tools": [NOW], "tool_choice": allowed("auto", named("now"), named("other"))},
        "tool_choice.allowed_tools.tools[1].function.name",
    ),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
    ({"tools": [NOW, WEATHER, NOW]}, "tools[2].function.name"),
    ({"tools": [NOW, {"type": "custom", "custom": {"name": "now"}}]}, "tools[1].custom.name"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
    ({"tools": [{**NOW, "x": 1}]}, "tools[0].x"),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
    (
        {"tools": [{"type": "custom", "custom": {"name": "f", "format": {**GRAMMAR, "x": 1}}}]},
        "tools[0].custom.format.x",
    ),
    ({"tools": [NOW], "tool_choice": {**named("now"), "x": 1}}, "tool_choice.x"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_invalid_tools_are_refused_by_path(fields, param):
    error = refusal(**fields)

    assert (400, param) == (error.status, error.param)


def test_tool_choice_without_tools_has_openai_s_message():
    message = refusal(tool_choice="required").message

    assert message == (
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
    )


def test_tools_share_one_size_limit(monkeypatch):
    """A template writes all of them into the prompt."""
    monkeypatch.setattr(tools_module, "MAX_TOOLS_BYTES", 40)

    error = refusal(tools=[NOW])

    assert error.message == "Invalid 'tools': it has 47 bytes of JSON; the limit is 40."


NAMES = st.sampled_from(["now", "code", "", "a b", "weather"])
ANY: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(0, 3) | NAMES | st.just([]) | st.just({})
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={"parameters": ANY, "strict": ANY, "description": ANY, "x": ANY},
)
CUSTOM = st.fixed_dictionaries(
    {"name": NAMES}, optional={"format": ANY | st.just(GRAMMAR), "description": ANY}
)
OFFERED = (
    st.builds(lambda function: {"type": "function", "function": function}, FUNCTIONS | ANY)
    | st.builds(lambda custom: {"type": "custom", "custom": custom}, CUSTOM | ANY)
    | ANY
)
NAMED = st.builds(
    lambda kind, name: {"type": kind, kind: {"name": name}},
    st.sampled_from(["function", "custom", "x"]),
    NAMES | ANY,
)
ALLOWED = st.builds(
    lambda mode, tools: {
        "type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}
    },
    st.sampled_from(["auto", "required", "none"]),
    st.lists(NAMED, max_size=3) | ANY,
)  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.lists(OFFERED, max_size=3) | ANY,
        "functions": st.lists(FUNCTIONS | ANY, max_size=3) | ANY,
        "tool_choice": st.sampled_from(["none", "auto", "required"]) | NAMED | ALLOWED | ANY,
        "function_call": st.sampled_from(["none", "auto"]) | FUNCTIONS | ANY,
        "parallel_tool_calls": ANY,
    },
)
READER = BodyReader(ChatCompletionRequest)


def read_or_refused(fields: dict[str, Any]) -> Tools | str:
    """The tools, or the field that the error names."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    try:
        return parse_tools(READER.parse(orjson.dumps(body)), FieldPolicy("ignore"))
    except InvalidRequest as refused:
        return (refused.param or "").partition(".")[0].partition("[")[0]


@pytest.mark.slow
@settings(max_examples=scaled(400))
@given(fields=REQUESTS)
def test_any_tools_are_read_or_refused_by_an_existing_path(fields):
    """The tools that are read are consistent with each other."""
    tools = read_or_refused(fields)

    if isinstance(tools, str):
        assert tools in fields
        return
    assert tools.allowed <= tools.functions.keys()
    assert tools.custom.keys() <= tools.functions.keys()
    assert tools.places.keys() == tools.functions.keys()
    shown = {each["function"]["name"] for each in tools.for_template}
    assert shown == (tools.allowed if tools.in_use else set())
    assert not tools.in_use or tools.allowed


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_number_beyond_64_bits_reaches_the_template(number, monkeypatch):
    """Only a grammar cannot have it (test_schema_reduction). Its characters count too."""
    function = {"name": "f", "parameters": {"maximum": number}}
    offered = [{"type": "function", "function": function}]

    assert read(tools=offered).for_template[0]["function"]["parameters"]["maximum"] == number
    monkeypatch.setattr(tools_module, "MAX_TOOLS_BYTES", 40)
    assert refusal(tools=offered).param == "tools"


HERMES = OutputFormat(family=BY_NAME["hermes"], evidence=())
PLAIN = OutputFormat(family=TEXT, evidence=())


@pytest.mark.parametrize(("reading", "shown"), [(PLAIN, True), (HERMES, False)])
@pytest.mark.parametrize("field", ["tools", "functions"])
def test_tools_are_refused_if_the_model_cannot_call_them(reading, shown, field):
    """Its template shows no tools, or it has no tool parser."""
    tools = read(tools=[NOW]) if field == "tools" else read(functions=[NOW["function"]])

    with pytest.raises(InvalidRequest, match="is not supported with this model: ") as refused:
        require_tool_support(tools, reading, shown=shown)

    assert (field, "unsupported_parameter") == (refused.value.param, refused.value.code)


def test_any_model_accepts_tools_with_tool_choice_none():
    unused = read(tools=[NOW], tool_choice="none")

    require_tool_support(unused, PLAIN, shown=False)  # raises for a model that cannot call them
    assert not unused.in_use


UNKNOWN_MEMBERS: list[tuple[str, dict[str, Any]]] = [
    ("tool_choice.foo", {"tool_choice": {**named("now"), "foo": 1}}),
    (
        "tool_choice.function.foo",
        {"tool_choice": {"type": "function", "function": {"name": "now", "foo": 1}}},
    ),
    ("tool_choice.foo", {"tool_choice": {**allowed("auto", NOW), "foo": 1}}),
    (
        "tool_choice.allowed_tools.tools[0].foo",
        {"tool_choice": allowed("auto", {**named("now"), "foo": 1})},
    ),
]


@pytest.mark.parametrize(("name", "fields"), UNKNOWN_MEMBERS)
def test_unknown_member_of_a_choice_of_tools_is_refused(name, fields):
    """With `--unknown-fields reject`, as other unknown fields."""
    assert refusal(tools=[NOW], **fields).param == name
    assert read("warn", tools=[NOW], **fields).allowed == {"now"}


def test_unknown_member_of_a_deprecated_choice_of_a_function_is_refused():
    choice = {"name": "now", "foo": 1}

    assert refusal(functions=[{"name": "now"}], function_call=choice).param == "function_call.foo"
