"""Anthropic's client with the gateway, the real core and the mock engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess

MODEL = "claude-test"
CALLS = (
    "<think>\nLook first.\n</think>\n\nLet me see."
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bergen", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
TURNS: list[dict[str, Any]] = [
    {"contains": "weather", "after": 0, "text": CALLS},
    {"contains": "weather", "after": 2, "text": "<think>\nok\n</think>\n\nRain."},
    {"text": "Hello there."},
]
TOOLS: list[Any] = [
    {"name": "weather", "input_schema": {"type": "object", "properties": {}}},
    {"name": "now", "input_schema": {"type": "object"}},
]
QUESTION: list[Any] = [{"role": "user", "content": "weather?"}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "tools": TOOLS, "messages": QUESTION}


@pytest.fixture(scope="module")
def messages_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("messages")
    models = folder / "models"
    mock_models.write_with_turns(
        models, MODEL, TURNS, tasks=["generate"], prefix_cache_blocks=64, block_size=8
    )
    short = {"tokens": ["a"], "answer_tokens": 99, "tasks": ["generate"], "max_model_len": 64}
    mock_models.write_with_tokenizer(models, "short", **short)
    mock_models.write_with_tokenizer(models, "failing", fail_after_tokens=1, **short)
    with GatewayProcess(models, Path(folder / "log")) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def claude(messages_gateway: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=messages_gateway.url, api_key="none", max_retries=0, timeout=600
    ) as client:
        yield client


def parts(message: Any) -> list[dict[str, Any]]:
    """The content without what differs by message."""
    kept = {"type", "text", "thinking", "name", "input"}
    return [
        {name: value for name, value in block.model_dump().items() if name in kept}
        for block in message.content
    ]


EXPECTED = [
    {"type": "thinking", "thinking": "Look first."},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "name": "weather", "input": {"city": "Bergen", "days": 3}},
    {"type": "tool_use", "name": "now", "input": {}},
]


def test_message_has_reasoning_text_and_calls(claude):
    message = claude.messages.create(**ASKED)

    assert (parts(message), message.stop_reason) == (EXPECTED, "tool_use")


def test_accumulated_stream_equals_the_whole_message(claude):
    """Each event comes relayed from the engine."""
    whole = claude.messages.create(**ASKED)

    with claude.messages.stream(**ASKED) as stream:
        message = stream.get_final_message()

    assert parts(message) == EXPECTED
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("tools", [TOOLS, anthropic.omit], ids=["parsed", "text"])
def test_stream_begins_with_the_cached_tokens(claude, tools):
    """A repeated prompt is cached but for its last tokens; start and end of the stream agree."""
    asked = {**ASKED, "tools": tools}
    claude.messages.create(**asked)

    with claude.messages.stream(**asked) as stream:
        [start] = [event.message.usage for event in stream if event.type == "message_start"]
        end = stream.get_final_message().usage

    assert start.cache_read_input_tokens == end.cache_read_input_tokens > 0
    assert start.input_tokens == end.input_tokens > 0
    assert start.output_tokens == 0 < end.output_tokens


async def test_asynchronous_client_streams(messages_gateway):
    url = messages_gateway.url
    async with (
        anthropic.AsyncAnthropic(base_url=url, auth_token="none", max_retries=0) as client,
        client.messages.stream(**ASKED) as stream,
    ):
        text = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()

    assert (text, parts(message)) == ("Let me see.", EXPECTED)


def test_results_continue_the_conversation(claude):
    """The blocks of an answer are sent back as they are."""
    first = claude.messages.create(**ASKED)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns = [
        *QUESTION,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]

    message = claude.messages.create(**{**ASKED, "messages": turns})

    assert [each["type"] for each in parts(message)] == ["thinking", "text"]
    assert (message.content[-1].text, message.stop_reason) == ("Rain.", "end_turn")


def test_hidden_reasoning_returns_to_the_prompt(claude):
    """With the same length as reasoning that was shown."""
    counts = []
    for display in ("summarized", "omitted"):
        thinking: Any = {"type": "adaptive", "display": display}
        answer = claude.messages.create(**ASKED, thinking=thinking)
        turns: Any = [*QUESTION, {"role": "assistant", "content": answer.content}, *QUESTION]
        counted = claude.messages.count_tokens(model=MODEL, messages=turns, tools=TOOLS)
        counts.append((answer.content[0].thinking, counted.input_tokens))

    assert [text for text, _ in counts] == ["Look first.", ""]
    assert counts[0][1] == counts[1][1]


def test_count_equals_the_usage(claude):
    """Exactly: both come from the renderer."""
    counted = claude.messages.count_tokens(model=MODEL, messages=QUESTION, tools=TOOLS)

    usage = claude.messages.create(**ASKED).usage

    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_context_ends_the_message(claude):
    """`max_tokens` exceeds the context, so it is shortened."""
    hello: Any = [{"role": "user", "content": "a" * 30}]
    message = claude.messages.create(model="short", max_tokens=32_000, messages=hello)
    full = claude.messages.create(model="short", max_tokens=4, messages=hello)

    assert message.stop_reason == "model_context_window_exceeded"
    assert full.stop_reason == "max_tokens"


def test_models_are_listed(claude):
    assert [model.id for model in claude.models.list(limit=1)] == [MODEL, "failing", "short"]
    assert claude.models.retrieve("short").max_input_tokens == 64


ERRORS: list[tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = [
    ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
    ({"model": "nope"}, anthropic.NotFoundError, "'nope' does not exist"),
    ({"model": "short", "messages": [{"role": "user", "content": "a" * 99}]},
     anthropic.BadRequestError, "prompt is too long: "),
    ({"model": "failing"}, anthropic.InternalServerError, "The server had an error"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "message"), ERRORS, ids=str)
def test_errors_are_those_of_the_sdk(claude, fields, kind, message):
    hello = {"model": "short", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}

    with pytest.raises(kind) as raised:
        claude.messages.create(**{**hello, **fields})

    assert message in raised.value.message
    assert raised.value.request_id == raised.value.body["request_id"]


def test_failure_within_a_stream_is_raised(claude):
    """After the first token."""
    hello: Any = [{"role": "user", "content": "hi"}]

    with (
        claude.messages.stream(model="failing", max_tokens=9, messages=hello) as stream,
        pytest.raises(anthropic.APIStatusError, match="The server had an error"),
    ):
        stream.get_final_message()
