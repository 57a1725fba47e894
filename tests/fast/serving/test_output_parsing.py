"""Choices that a parser reads: their events, their counts and their ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts, UsageCounter
from openai_frontend.parsing.events import (
    ArgumentsTooLong,
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.output.output_parsing import (
    DeltaParser,
    ParsedDelta,
    ParserConfig,
    merge_events,
)
from openai_frontend.serving.request.tools import Tools

TOOLS = Tools(functions={"f": {"type": "object"}}, choice="auto", allowed=frozenset("f"))
ONE_CALL = Tools(functions=TOOLS.functions, choice="auto", allowed=frozenset("f"), parallel=False)
LEGACY = Tools(
    functions=TOOLS.functions, choice="auto", allowed=frozenset("f"), parallel=False, legacy=True
)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def reading(tools: Tools = TOOLS, **options: Any) -> ParserConfig:
    def parser() -> FamilyParser:
        limit = options.get("max_arguments", 1000)
        return FamilyParser(BY_NAME["qwen3"], tools.functions, max_arguments=limit)

    return ParserConfig(
        new_parser=parser,
        may_call=tools.in_use,
        parallel_calls=tools.parallel,
        token_bytes=lambda token: chr(token).encode(),
        include_reasoning=options.get("include_reasoning", True),
    )


def reader(tools: Tools = TOOLS, **options: Any) -> DeltaParser:
    return DeltaParser(reading(tools, **options), UsageCounter(5))


def deltas(text: str, size: int, reason: Any = "stop") -> list[CompletionDelta]:
    """The text in pieces of `size` tokens, one token per character."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    made = [CompletionDelta(piece, [ord(letter) for letter in piece]) for piece in pieces]
    return [*made, CompletionDelta(finish_reason=reason, counts=TokenCounts(5, len(text)))]


def read_all(of: DeltaParser, deltas: Sequence[CompletionDelta]) -> list[ParsedDelta]:
    """The parsed deltas, up to the one at which the parser stops."""
    reads = []
    for delta in of.in_steps(deltas):
        reads.append(of.parse(delta))
        if of.stopped:
            break
    return reads


def told(reads: Sequence[CompletionDelta]) -> list[Event]:
    return merge_events(
        [event for read in reads if isinstance(read, ParsedDelta) for event in read.events]
    )


SIZES = pytest.mark.parametrize("size", [1, 2, 7, 1000])


@SIZES
def test_parser_returns_the_events_of_the_text(size):
    reads = list(read_all(reader(), deltas(f"<think>hm</think>Hi {CALL}", size)))

    events = told(reads)
    assert [ReasoningText("hm"), ContentText("Hi")] == events[:2]
    assert [ToolCallArguments(0, '{"a": 1}'), ToolCallEnd(0)] == events[3:]
    assert reads[-1].called


@SIZES
def test_reasoning_tokens_include_the_end_marker(size):
    reads = read_all(reader(), deltas("<think>hmm</think>Hi", size))

    assert len("hmm</think>") == sum(read.reasoning_tokens for read in reads)


def test_delta_without_token_ids_counts_as_one_reasoning_token():
    pieces = ["<think>", "a", "b", "", "</think>", "Hi"]

    reads = list(read_all(reader(), [CompletionDelta(piece) for piece in pieces]))

    assert [read.reasoning_tokens for read in reads] == [0, 1, 1, 0, 1, 0]


def test_text_and_tokens_need_not_match():
    """Special tokens are not in the text, and some text belongs to no token. The parser reads
    all of it.
    """
    read = reader().parse(CompletionDelta("<think>é</think>Hi", [999, 104, 0xE9, 7, 8]))

    assert [ReasoningText("é"), ContentText("Hi")] == read.events


def test_hidden_reasoning_is_still_counted():
    reads = list(read_all(reader(include_reasoning=False), deltas("<think>hm</think>Hi", 1)))

    assert [ContentText("Hi")] == told(reads)
    assert len("hm</think>") == sum(read.reasoning_tokens for read in reads)


REASONS: list[tuple[Tools, str, str, Any]] = [
    (TOOLS, CALL, "stop", True),
    (LEGACY, CALL, "stop", True),
    (TOOLS, CALL, "length", False),
    (TOOLS, "Hi", "stop", False),
    (TOOLS, CALL[:-20], "stop", False),
    (ONE_CALL, CALL[:-20], "length", False),
]


@pytest.mark.parametrize(("tools", "text", "reason", "calls"), REASONS)
def test_calls_end_the_output_with_a_complete_call_and_a_stop(tools, text, reason, calls):
    """The model must stop by itself."""
    *_, last = read_all(reader(tools), deltas(text, 1000, reason))

    assert (calls, reason) == (last.called, last.finish_reason)


@SIZES
def test_answer_ends_after_the_only_allowed_call(size):
    """The parser returns no events after that call."""
    one = reader(ONE_CALL)

    reads = list(read_all(one, deltas(f"{CALL} and {CALL}", size)))

    assert [ToolCallStart, ToolCallArguments, ToolCallEnd] == [type(each) for each in told(reads)]
    assert (one.stopped, reads[-1].finish_reason, reads[-1].called) == (True, "stop", True)


@pytest.mark.parametrize("ahead", [0, 1, 9])
def test_stopped_answer_counts_the_tokens_up_to_its_end(ahead):
    """The server stops the engine before the engine reports its counts. What has arrived already is
    not counted: it depends on how busy the process is.
    """
    usage = UsageCounter(5)
    one = DeltaParser(reading(ONE_CALL), usage)
    coming = deltas(f"{CALL} and {CALL}", 1)
    usage.add(coming[:ahead])
    for at, delta in enumerate(coming):
        usage.add(coming[at + ahead : at + ahead + 1])
        last = one.parse(delta)
        if one.stopped:
            break

    arguments_end = CALL.index("}}") + 1
    assert TokenCounts(prompt_tokens=5, completion_tokens=arguments_end) == last.counts
    assert (usage.finish_reason, usage.completion_tokens) == ("stop", arguments_end)


@SIZES
def test_too_long_arguments_end_the_answer_with_length(size):
    cut = reader(max_arguments=4)

    reads = list(read_all(cut, deltas(f"{CALL}{CALL}", size)))

    assert ArgumentsTooLong(0) == told(reads)[-1]
    assert (cut.stopped, reads[-1].finish_reason, reads[-1].called) == (True, "length", False)


@SIZES
@pytest.mark.parametrize("tools", [ONE_CALL, LEGACY])
def test_too_long_arguments_of_the_only_allowed_call_end_with_length(tools, size):
    """The end of such a call would otherwise end the answer with a stop."""
    cut = reader(tools, max_arguments=4)

    *_, last = read_all(cut, deltas(f"{CALL}{CALL}", size))

    assert (cut.stopped, last.finish_reason, last.called) == (True, "length", False)


async def test_long_answer_yields_to_the_event_loop_between_slices():
    """An answer that arrives at once is still parsed token by token."""
    text = f"<think>{'hm ' * 2000}</think>Hi"
    turns = 0

    async def once() -> AsyncGenerator[list[CompletionDelta], None]:
        ids = [ord(letter) for letter in text]
        yield [CompletionDelta(text, ids, "stop", counts=TokenCounts(5, len(ids)))]

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    request = GenerationRequest(request_id="r")
    [burst] = [burst async for burst in reading().parse(once(), request)]
    counting.cancel()

    assert turns >= len(text) // 256 - 1
    assert [ReasoningText("hm " * 1999 + "hm"), ContentText("Hi")] == told(burst)
    assert [token for read in burst for token in read.token_ids] == [ord(each) for each in text]


async def test_finished_answer_cancels_the_engine_immediately():
    closed = []

    async def long() -> AsyncGenerator[list[CompletionDelta], None]:
        try:
            for _ in range(100):
                yield deltas(CALL, 3)[:-1]
        finally:
            closed.append(True)

    request = GenerationRequest(request_id="r", usage=UsageCounter(3))
    bursts = [burst async for burst in reading(ONE_CALL).parse(long(), request)]

    assert (len(bursts), closed) == (1, [True])
    assert bursts[0][-1].counts.prompt_tokens == 3


def test_merge_events_joins_adjacent_pieces_of_one_text():
    events: list[Event] = [
        ContentText("a"), ContentText("b"), ReasoningText("c"), ToolCallStart(0, "i", "f"),
        ToolCallArguments(0, "{"), ToolCallArguments(0, "}"), ToolCallEnd(0), ToolCallEnd(1),
    ]  # fmt: skip

    assert [
        ContentText("ab"), ReasoningText("c"), ToolCallStart(0, "i", "f"),
        ToolCallArguments(0, "{}"), ToolCallEnd(0), ToolCallEnd(1),
    ] == merge_events(events)  # fmt: skip
