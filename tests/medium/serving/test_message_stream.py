"""Streams of Anthropic's events: their order, their sum, and the whole message."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta
from openai_frontend.parsing.events import ContentText, ReasoningText, ToolCallArguments
from openai_frontend.serving.dialects.messages.reader import MessageJob
from openai_frontend.serving.dialects.messages.writer import MessageWriter, complete, events
from openai_frontend.serving.error_reply import reply_for
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.sealed_text import Unsealer
from schemas.messages import Message
from tests.core.serving.test_relay import Way
from tests.examples import scaled
from tests.fast.serving.fake_model import FakeModel, last
from tests.medium.serving.test_message_requests import TOOL, prepare, thinking_model
from tests.message_rules import check_stream, folded

OUTPUT = (
    '<think>hm, é</think>Let me see.<tool_call>{"name": "f", "arguments": {"a": "x\\"ü"}}'
    '</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>'
)


def model_of(pieces: Sequence[str], **options: Any) -> FakeModel:
    """Each character is a token."""
    deltas = [CompletionDelta(each, [ord(letter) for letter in each]) for each in pieces]
    end = last(completion=sum(map(len, pieces)))
    return thinking_model(bursts=[*([each] for each in deltas), [end]], **options)


async def message_of(pieces: Sequence[str], **fields: Any) -> MessageJob:
    fields = {"tools": [TOOL], "max_tokens": 500, **fields}
    return await prepare(model_of(pieces), stream=True, **fields)


async def streamed(message: MessageJob, driver: StreamDriver | None = None) -> bytes:
    driver = driver or events(message)
    sent = driver.start()
    async with aclosing(message.job.bursts()) as bursts:
        async for burst in bursts:
            for choice, deltas in burst:
                sent += driver.feed(choice, deltas)
    return sent + driver.finish()


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [
        {name: value for name, value in block.items() if name in ("type", "text", "thinking",
                                                                  "name", "input")}
        for block in message["content"]
    ]  # fmt: skip
    return message | {"id": "", "content": content}


EXPECTED = [
    {"type": "thinking", "thinking": "hm, é"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "name": "f", "input": {"a": 'x"ü'}},
    {"type": "tool_use", "name": "f", "input": {}},
]


async def whole(pieces: Sequence[str], **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = orjson.loads(await complete(await message_of(pieces, **fields)))
    return message


async def test_message_has_the_keys_of_the_schema():
    answer = await whole([OUTPUT])

    assert Message.model_validate(answer).model_dump() == answer
    assert without_ids(answer)["content"] == EXPECTED


@settings(max_examples=scaled(50), deadline=None)
@given(cuts=st.sets(st.integers(1, len(OUTPUT) - 1), max_size=12))
def test_any_chunking_gives_the_same_blocks_as_the_whole_message(cuts):
    """The sum of the events equals the message that is not streamed."""
    places = [0, *sorted(cuts), len(OUTPUT)]
    pieces = [OUTPUT[a:b] for a, b in itertools.pairwise(places)]

    async def both() -> tuple[bytes, dict[str, Any]]:
        return await streamed(await message_of(pieces)), await whole(pieces)

    stream, answer = asyncio.run(both())

    assert without_ids(folded(stream)) == without_ids(answer)
    assert folded(stream)["content"] == EXPECTED


@settings(max_examples=scaled(30), deadline=None)
@given(length=st.integers(0, len(OUTPUT)))
def test_any_cut_gives_a_valid_stream_that_equals_the_whole_message(length):
    """The output may end in the middle of anything."""

    async def both() -> tuple[bytes, dict[str, Any]]:
        pieces = [OUTPUT[:length]]
        return await streamed(await message_of(pieces)), await whole(pieces)

    stream, answer = asyncio.run(both())

    assert without_ids(folded(stream)) == without_ids(answer)


async def test_empty_output_is_one_empty_text():
    assert (await whole([]))["content"] == [{"type": "text", "text": "", "citations": None}]
    assert folded(await streamed(await message_of([])))["content"] == [{"type": "text", "text": ""}]


@pytest.mark.honours("messages.thinking.enabled.display", "messages.thinking.adaptive.display")
@pytest.mark.parametrize("kind", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 9}])
async def test_hidden_reasoning_is_in_the_signature(kind):
    """The next turn returns it, so that the prompt's prefix stays the same."""
    thinking = {**kind, "display": "omitted"}

    answer = await whole(["<think>hm", "hm</think>x"], thinking=thinking)
    stream = await streamed(await message_of(["<think>hm", "hm</think>x"], thinking=thinking))

    block = answer["content"][0]
    assert (block["thinking"], Unsealer().read(block["signature"])) == ("", "hmhm")
    assert b"thinking_delta" not in stream
    assert without_ids(folded(stream)) == without_ids(answer)


async def test_signature_is_that_of_the_message_whether_streamed_or_not():
    """It is a digest without a key: it tells our reasoning from that of others, and proves
    nothing.
    """
    message = await message_of(["<think>hm</think>x"])
    again = replace(message, job=replace(message.job))

    stream = check_stream(await streamed(message))
    answer = orjson.loads(await complete(again))

    [signature] = [
        event["delta"]["signature"]
        for event in stream
        if event.get("delta", {}).get("type") == "signature_delta"
    ]
    assert signature.startswith("ofs1.")
    assert answer["content"][0]["signature"] == signature


ENDS: list[tuple[CompletionDelta, dict[str, Any], tuple[str, Any]]] = [
    (last("x"), {}, ("end_turn", None)),
    (replace(last("x"), stop_reason="END"), {}, ("stop_sequence", "END")),
    (replace(last("x"), stop_reason=7), {}, ("end_turn", None)),
    (last("x", "length", completion=9), {}, ("max_tokens", None)),
    (last("x", "length", prompt=60, completion=4), {"max_tokens": 99},
     ("model_context_window_exceeded", None)),
    (last("x", "length", prompt=55, completion=9), {}, ("max_tokens", None)),
]  # fmt: skip


@pytest.mark.parametrize(("end", "fields", "expected"), ENDS, ids=str)
async def test_stop_reason(end, fields, expected):
    model = FakeModel([[end]], max_model_len=64)
    message = await prepare(model, stream=True, **fields)

    stream = folded(await streamed(message))

    assert (stream["stop_reason"], stream["stop_sequence"]) == expected
    answer = orjson.loads(await complete(await prepare(model, **fields)))
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


async def test_calls_end_a_message_with_tool_use():
    assert (await whole([OUTPUT]))["stop_reason"] == "tool_use"


@pytest.mark.parametrize("before", ["", OUTPUT])
@pytest.mark.parametrize("arguments", ["{", '{"a": "x"', '{"a": "x", "b": '])
async def test_unfinished_call_is_never_a_finished_one(before, arguments):
    """The model stopped by itself within the arguments. Clients run a call after `tool_use`, and
    read `{}` as arguments; in chats, these are not JSON.
    """
    cut = f'{before}<tool_call>{{"name": "f", "arguments": {arguments}'

    answer = await whole([cut])

    assert answer["content"][-1]["type"] == "tool_use"
    assert answer["stop_reason"] == "max_tokens"
    assert without_ids(folded(await streamed(await message_of([cut])))) == without_ids(answer)


async def test_one_call_ends_the_message_if_parallel_calls_are_disabled():
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    answer = await whole([OUTPUT], tool_choice=choice)

    assert [block["type"] for block in answer["content"]].count("tool_use") == 1
    assert answer["stop_reason"] == "tool_use"


async def test_usage_counts_the_cached_part_apart():
    """The prompt has three tokens, of which one was cached."""
    usage = (await whole(["hi"]))["usage"]

    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (2, 1)
    assert usage["output_tokens_details"] == {"thinking_tokens": 0}


async def test_failure_is_the_last_event():
    """In Anthropic's form, after the opening if that was not sent."""
    writer = MessageWriter(await message_of([]))
    reply = reply_for(InferenceFailed("no"))

    [start, error] = check_stream(writer.failure(reply, writer.opening()))

    assert (start["type"], error["type"]) == ("message_start", "error")
    assert error["error"]["type"] == "api_error"


async def test_silence_is_ended_by_a_ping():
    writer = MessageWriter(await message_of([]))

    assert writer.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


async def test_relayed_text_equals_fed_text():
    """A model without a parser has one text, whose frames native code writes."""
    model = FakeModel([[CompletionDelta("a\u2028"), CompletionDelta('"b')], [last()]])
    message = await prepare(model, stream=True)
    way = Way()
    relayed = await prepare(model, stream=True)
    [request] = relayed.job.requests
    relayed.job.requests = [replace(request, relay=way.relay)]
    driver = events(relayed)
    sent = driver.start()

    def write(frame: bytes) -> bool:
        nonlocal sent
        sent += frame
        return False

    assert driver.relay(write) is not None
    way.put("a\u2028")
    way.put('"b')
    request.usage.add([last()])
    sent += driver.feed(0, [last()]) + driver.finish()

    assert folded(sent)["content"] == folded(await streamed(message))["content"]


@pytest.mark.parametrize(
    "event", [ContentText(""), ReasoningText(""), ToolCallArguments(0, "")], ids=str
)
async def test_only_the_open_block_is_relayed(event):
    """Another one must begin first."""
    writer = MessageWriter(await message_of([]))

    assert writer.around(0, event) is None


async def test_hidden_reasoning_is_not_relayed():
    """Its text must reach the signature."""
    thinking = {"type": "adaptive", "display": "omitted"}
    writer = MessageWriter(await message_of([], thinking=thinking))
    writer.opening()
    writer.events(0, [ReasoningText("hm")], None)

    assert writer.around(0, ReasoningText("")) is None
