"""Tools and reasoning over real sockets: OpenAI's SDK with models that repeat sample outputs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from openai_frontend.parsing.registry import BY_NAME, family_for
from tests import mock_models
from tests.fast.parsing import samples
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import GatewayProcess

honours = pytest.mark.honours
USER: Any = [{"role": "user", "content": "hi"}]
RECITED = {
    "hermes": "several_calls",
    "qwen3": "reasoning_text_and_calls",
    "mistral": "several_calls",
    "llama3_json": "text_before",
    "deepseek_r1": "reasoning_and_calls",
    "gpt_oss": "analysis_and_call",
}


def tool_call(name: str, **arguments: Any) -> str:
    """A call in the format of the family `hermes`."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


# model -> its family and its output
OTHERS = {
    "weather": ("hermes", tool_call("Weather", city="Ö")),
    "custom": ("hermes", tool_call("code", input='a\n"b"')),
    "thinks": ("qwen3", "<think>\nhm hm\n</think>\n\nIt is sunny."),
    "endless": ("hermes", tool_call("now")),
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in samples.TOOLS.items()
]


def output(family: str) -> dict[str, Any]:
    outputs = samples.outputs(samples.FOLDER / f"{family}.json")
    return next(each for each in outputs if each["name"] == RECITED[family])


def template(family: str) -> str:
    """ChatML with tools, and the markers by which a family is recognized."""
    signs = " ".join(BY_NAME[family].signs[0])
    return (
        "{#" + signs + "#}{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
        "{% endif %}" + tiny_tokenizer.CHATML
    )


def write(repository: Path, name: str, family: str, text: str) -> None:
    """A model that generates this text, three characters per token."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    length = None if name == "endless" else len(pieces)
    version = mock_models.write(
        repository, name, tokenizer="./tokenizer", tokens=pieces, answer_tokens=length
    )
    assert family_for(template(family)).family.name == family
    tiny_tokenizer.write(version / "tokenizer", chat_template=template(family))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("tools")
    said = {family: (family, output(family)["text"]) for family in RECITED}
    for name, (family, text) in (said | OTHERS).items():
        write(folder / "models", name, family, text)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=30) as opened:
        yield opened


def calls(message: Any) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
    ]


@honours(
    "chat.tools", "chat.tools.function", "chat.tools.function.name",
    "chat.tools.function.parameters",
)  # fmt: skip
@pytest.mark.parametrize("family", RECITED)
def test_answer_equals_the_sample_of_its_family(client, family):
    """Both complete and as the SDK joins a stream."""
    expected = output(family)
    whole = client.chat.completions.create(model=family, messages=USER, tools=TOOLS)
    with client.chat.completions.stream(model=family, messages=USER, tools=TOOLS) as stream:
        streamed = stream.get_final_completion()

    for completion in (whole, streamed):
        [choice] = completion.choices
        assert calls(choice.message) == [
            (call["name"], call["arguments"]) for call in expected["calls"]
        ]
        assert (choice.message.content or "") == expected["content"]
        assert choice.message.to_dict().get("reasoning_content", "") == expected["reasoning"]
        assert choice.finish_reason == "tool_calls"


class Weather(BaseModel):
    """Tells the weather."""

    city: str


@honours("chat.tools.function.strict", "chat.tools.function.description")
def test_strict_tools_parse_into_the_pydantic_model(client):
    """With `.parse` and `.stream`."""
    tools = [openai.pydantic_function_tool(Weather)]
    asked: Any = {"model": "weather", "messages": USER, "tools": tools}

    parsed = client.chat.completions.parse(**asked)
    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion()

    for completion in (parsed, streamed):
        [call] = completion.choices[0].message.tool_calls
        assert call.function.parsed_arguments == Weather(city="Ö")
    assert "tool_calls.function.arguments.done" in events


CHOICES: list[Any] = [
    pytest.param("required", marks=honours("chat.tool_choice", "chat.tool_choice.required")),
    pytest.param("auto", marks=honours("chat.tool_choice.auto")),
    pytest.param(
        {"type": "function", "function": {"name": "now"}},
        marks=honours("chat.tool_choice.function", "chat.tool_choice.function.name"),
    ),
    pytest.param(
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "now"}}],
            },
        },
        marks=honours(
            "chat.tool_choice.allowed_tools",
            "chat.tool_choice.allowed_tools.mode",
            "chat.tool_choice.allowed_tools.tools",
            "chat.tool_choice.allowed_tools.tools.function",
            "chat.tool_choice.allowed_tools.tools.function.name",
        ),
    ),
]


@pytest.mark.parametrize("choice", CHOICES)
@honours("chat.parallel_tool_calls")
def test_parallel_tool_calls_false_ends_the_answer_after_one_call(client, choice):
    """With every `tool_choice`. The model would generate calls forever."""
    asked: Any = {"model": "endless", "messages": USER, "tools": TOOLS, "tool_choice": choice}

    whole = client.chat.completions.create(**asked, parallel_tool_calls=False)
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion()

    for completion in (whole, streamed):
        assert calls(completion.choices[0].message) == [("now", {})]
        assert completion.choices[0].finish_reason == "tool_calls"
    assert whole.usage.completion_tokens < 40  # the context has room for 4,000


@honours("chat.tool_choice.none")
def test_tool_choice_none_hides_the_tools_from_the_model(client):
    """Its output is text."""
    asked: Any = {"model": "hermes", "messages": USER, "tool_choice": "none"}

    with_tools = client.chat.completions.create(**asked, tools=TOOLS)
    without = client.chat.completions.create(**asked)

    assert with_tools.usage == without.usage
    assert with_tools.choices[0].message.content == output("hermes")["text"]


GRAMMARS: list[Any] = [
    None,
    {"type": "text"},
    {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}},
    {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}},
]


@honours(
    "chat.tools.custom", "chat.tools.custom.name", "chat.tools.custom.description",
    "chat.tools.custom.format", "chat.tools.custom.format.text",
    "chat.tools.custom.format.grammar", "chat.tools.custom.format.grammar.syntax",
    "chat.tools.custom.format.grammar.definition",
)  # fmt: skip
@pytest.mark.parametrize("form", GRAMMARS)
def test_custom_tool_is_called_with_text(client, form):
    """Complete and streamed."""
    custom = {"name": "code", "description": "runs code", **({"format": form} if form else {})}
    asked: Any = {
        "model": "custom",
        "messages": USER,
        "tools": [{"type": "custom", "custom": custom}],
    }

    [call] = client.chat.completions.create(**asked).choices[0].message.tool_calls
    parts = list(client.chat.completions.create(**asked, stream=True))

    assert (call.type, call.custom.name, call.custom.input) == ("custom", "code", 'a\n"b"')
    deltas = [each for part in parts for each in part.choices[0].delta.tool_calls or ()]
    inputs = [delta.to_dict()["custom"].get("input", "") for delta in deltas]
    assert "".join(inputs) == call.custom.input
    assert len(inputs) > 2


NAMED_CUSTOM: Any = {"type": "custom", "custom": {"name": "code"}}
CUSTOM_CHOICES: list[Any] = [
    pytest.param(
        NAMED_CUSTOM, marks=honours("chat.tool_choice.custom", "chat.tool_choice.custom.name")
    ),
    pytest.param(
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED_CUSTOM]}},
        marks=honours(
            "chat.tool_choice.allowed_tools.tools.custom",
            "chat.tool_choice.allowed_tools.tools.custom.name",
        ),
    ),
]


@pytest.mark.parametrize("choice", CUSTOM_CHOICES)
def test_tool_choice_can_require_a_custom_tool(client, choice):
    completion = client.chat.completions.create(
        model="custom",
        messages=USER,
        tools=[*TOOLS, NAMED_CUSTOM],
        tool_choice=choice,
    )

    assert completion.choices[0].message.tool_calls[0].custom.input == 'a\n"b"'


@honours(
    "chat.functions", "chat.functions.name", "chat.functions.description",
    "chat.functions.parameters", "chat.function_call", "chat.function_call.auto",
    "chat.function_call.name",
)  # fmt: skip
@pytest.mark.parametrize("choice", ["auto", {"name": "now"}])
def test_functions_are_answered_with_function_call(client, choice):
    """The deprecated form of tools."""
    functions = [{"name": "now", "description": "the time", "parameters": {"type": "object"}}]
    asked: Any = {
        "model": "endless",
        "messages": USER,
        "functions": functions,
        "function_call": choice,
    }

    [whole] = client.chat.completions.create(**asked).choices
    parts = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]

    called = whole.message.function_call
    assert (called.name, called.arguments, whole.finish_reason) == ("now", "{}", "function_call")
    deltas = [part.delta.function_call for part in parts if part.delta.function_call]
    assert [delta.name for delta in deltas if delta.name] == ["now"]
    assert "".join(delta.arguments or "" for delta in deltas) == "{}"
    assert parts[-1].finish_reason == "function_call"


@honours("chat.function_call.none")
def test_function_call_none_calls_no_function(client):
    completion = client.chat.completions.create(
        model="hermes", messages=USER, functions=[{"name": "now"}], function_call="none"
    )

    assert completion.choices[0].message.content == output("hermes")["text"]


@honours("chat.include_reasoning")
@pytest.mark.parametrize("include", [None, True, False])
def test_reasoning_is_separate_from_the_content(client, include):
    """`include_reasoning=False` leaves it out. The usage counts it."""
    asked: Any = {
        "model": "thinks",
        "messages": USER,
        "extra_body": {"include_reasoning": include},
    }

    whole = client.chat.completions.create(**asked)
    parts = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    message = whole.choices[0].message.to_dict()
    reasoning = "" if include is False else "hm hm"
    assert message["content"] == "It is sunny."
    assert {message.get(name, "") for name in ("reasoning_content", "reasoning")} == {reasoning}
    deltas = [part.choices[0].delta.to_dict() for part in parts[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == reasoning
    assert "".join(delta.get("content", "") for delta in deltas) == "It is sunny."
    told = parts[-1].usage.completion_tokens_details.reasoning_tokens
    assert told == len("hm hm\n</think>\n") // 3


def test_invalid_name_of_a_function_is_a_400_that_names_the_field(client):
    tools: Any = [{"type": "function", "function": {"name": "a b"}}]

    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="hermes", messages=USER, tools=tools)

    assert refused.value.param == "tools[0].function.name"
