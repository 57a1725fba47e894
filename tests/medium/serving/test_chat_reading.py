"""Answers that a parser reads: streamed and complete answers agree with the recorded samples."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.generation import CompletionDelta, TokenCounts
from openai_frontend.parsing.output_format import OutputFormat
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.serving.dialects.chat import chunks, complete
from tests.examples import scaled
from tests.fast.parsing import samples
from tests.fast.serving.fake_model import FakeModel
from tests.medium.serving.test_chat import prepare
from tests.sdk_types import check_body, check_event
from tests.stream_rules import Asked, StreamRules

PATH = "/v1/chat/completions"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in samples.TOOLS.items()
]
CODE = {"type": "custom", "custom": {"name": "code"}}
CALL = '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'


def output_format(family: str) -> OutputFormat:
    return OutputFormat(family=BY_NAME[family])


def model(pieces: Sequence[str], family: str = "qwen3", **options: Any) -> FakeModel:
    """A model that produces these pieces, one token for each character."""
    deltas = [CompletionDelta(piece, list(map(ord, piece))) for piece in pieces]
    counts = TokenCounts(prompt_tokens=5, completion_tokens=sum(map(len, pieces)))
    last = CompletionDelta(finish_reason=options.pop("reason", "stop"), counts=counts)
    known = frozenset({"tools"})
    return FakeModel(
        [*([delta] for delta in deltas), [last]],
        output_format=output_format(family),
        template_variables=known,
        **options,
    )


async def whole(of: FakeModel, **fields: Any) -> dict[str, Any]:
    """The complete answer, parsed by the SDK's types."""
    async with asyncio.timeout(20):
        completion = await complete(await prepare(of, **{"tools": TOOLS, **fields}))
    check_body(PATH, orjson.dumps(completion))
    return completion


async def streamed(of: FakeModel, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of the answer, after a check of their order."""
    body = {"tools": TOOLS, **fields, "stream": True}
    answer = await prepare(of, **body)
    stream, rules = chunks(answer), StreamRules(Asked.by(body), chat=True)
    sent = stream.start()
    async with asyncio.timeout(20), aclosing(answer.bursts()) as bursts:
        async for burst in bursts:
            for choice, deltas in burst:
                sent += stream.feed(choice, deltas)
    sent += stream.finish()
    events = [event.removeprefix("data: ") for event in sent.decode().split("\n\n")[:-1]]
    for event in events:
        check_event(PATH, event.encode())
        rules.feed(event)
    rules.finish()
    return [orjson.loads(event) for event in events[:-1]]


def added_up(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The completion that the SDK assembles from the chunks."""
    state: Any = ChatCompletionStreamState()
    for part in parts:
        state.handle_chunk(ChatCompletionChunk.construct(**part))
    completion: dict[str, Any] = state.current_completion_snapshot.to_dict()
    return completion


def choices_of(completion: dict[str, Any]) -> list[dict[str, Any]]:
    """What each choice contains, without the random ids."""
    return [
        {
            "content": choice["message"].get("content") or "",
            "reasoning_content": choice["message"].get("reasoning_content", ""),
            "reasoning": choice["message"].get("reasoning", ""),
            "calls": [
                {"type": call["type"], call["type"]: called(call[call["type"]])}
                for call in choice["message"].get("tool_calls") or ()
            ],
            "function_call": choice["message"].get("function_call"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in completion["choices"]
    ]


def called(call: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that the SDK adds."""
    return {name: value for name, value in call.items() if name != "parsed_arguments"}


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def prompt_for(family: str, output: dict[str, Any]) -> list[dict[str, str]]:
    """Messages whose rendered prompt ends as the sample's prompt did."""
    reasoning = BY_NAME[family].reasoning
    opened = output.get("reasoning_open")
    if reasoning is None or opened is None:
        return [{"role": "user", "content": "hi"}]
    return [{"role": "user", "content": reasoning.start if opened else reasoning.end}]


@pytest.mark.slow
@pytest.mark.parametrize("path", samples.FILES, ids=[path.stem for path in samples.FILES])
@settings(max_examples=scaled(3), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(places=st.lists(st.integers(0, 400), max_size=40))
async def test_answers_equal_the_samples_however_they_are_split(path, places):
    """Streamed and complete answers equal the sample for every split into deltas."""
    for output in samples.outputs(path):
        await assert_equals_the_sample(path.stem, output, places)


async def assert_equals_the_sample(
    family: str, output: dict[str, Any], places: Sequence[int]
) -> None:
    pieces, messages = cut(output["text"], places), prompt_for(family, output)
    fields = {"messages": messages, "tools": TOOLS if output_format(family).tools else None}

    one = await whole(model(pieces, family), **fields)
    parts = added_up(await streamed(model(pieces, family), **fields))

    [of_whole], [of_stream] = choices_of(one), choices_of(parts)
    name, calls = output["name"], output["calls"]
    truncated = not any(call.get("complete", True) for call in calls)
    assert of_stream == of_whole, name
    assert of_whole["content"] == output["content"], name
    assert of_whole["reasoning"] == output["reasoning"], name
    assert [each["function"]["name"] for each in of_whole["calls"]] == [
        call["name"] for call in calls
    ], name
    assert of_whole["finish_reason"] == ("stop" if truncated else "tool_calls"), name


async def test_tool_call_deltas_follow_openai():
    """The fields that open a call come once; pieces of its arguments follow."""
    pieces = ["<think>", "hm", "</think>", "Hi.", CALL[:44], CALL[44:]]

    events = await streamed(model(pieces))

    deltas = [event["choices"][0]["delta"] for event in events]
    begun = deltas[3]["tool_calls"][0]
    assert (begun["index"], begun["type"]) == (0, "function")
    assert begun["function"] == {"name": "now", "arguments": ""}
    del deltas[3]
    assert deltas == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "Hi."},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {},
    ]


@pytest.mark.parametrize("name", ["files.read", "github/search", "a" * 128])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen3", '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'),
        ("pythonic", "[NAME()]"),
        ("qwen3_coder", "<tool_call>\n<function=NAME>\n</function>\n</tool_call>"),
        ("mistral", "[TOOL_CALLS]NAME[ARGS]{}"),
    ],
)
async def test_function_names_of_mcp_are_accepted(name, family, text):
    """They may contain dots and slashes and have the length that MCP allows."""
    tools = [{"type": "function", "function": {"name": name}}]

    completion = await whole(model([text.replace("NAME", name)], family), tools=tools)

    [call] = completion["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": name, "arguments": "{}"}


async def test_message_with_only_tool_calls_has_no_content():
    """The message also has no `function_call` and no reasoning field."""
    completion = await whole(model([CALL]))

    [choice] = completion["choices"]
    [call] = choice["message"].pop("tool_calls")
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
    }
    assert call["function"] == {"name": "now", "arguments": '{"a": 1}'}
    assert call["id"].startswith("call_")


async def test_call_is_text_if_the_request_has_no_tools():
    """A request with `tool_choice` "none" gets text, too."""
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        [answer] = choices_of(await whole(model([CALL]), **fields))

        assert (answer["content"], answer["finish_reason"]) == (CALL, "stop")


NAMED = {"type": "function", "function": {"name": "now"}}
REASONS: list[tuple[Any, str, str]] = [
    ("auto", "stop", "tool_calls"),
    ("required", "stop", "tool_calls"),
    (NAMED, "stop", "tool_calls"),
    ("auto", "length", "length"),
]


@pytest.mark.parametrize(("choice", "reason", "expected"), REASONS)
async def test_finish_reason_of_an_answer_with_calls(choice, reason, expected):
    """It is `tool_calls` for named and chosen functions, unless the answer was cut."""
    of = model([CALL], "hermes", reason=reason)

    events = await streamed(of, tool_choice=choice)

    assert events[-1]["choices"][0]["finish_reason"] == expected


HELD: list[tuple[Any, str]] = [
    (NAMED, '{"a": 1}'),
    ("required", '[{"name": "now", "parameters": {"a": 1}}]'),
]


@pytest.mark.parametrize(("choice", "text"), HELD)
async def test_forced_calls_are_json_if_the_family_has_no_constrainable_format(choice, text):
    [answer] = choices_of(await whole(model([*text], "gemma4"), tool_choice=choice))

    assert answer["calls"] == [
        {"type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    ]
    assert answer["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_tool_calls_false_stops_after_the_first_call(stream):
    """The server omits what follows the call and stops the engine."""
    of = model([*CALL, *CALL, "never entries"], endless=True)

    fields = {"parallel_tool_calls": False}
    answered = added_up(await streamed(of, **fields)) if stream else await whole(of, **fields)

    [answer] = choices_of(answered)
    assert answer["calls"] == [
        {"type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    ]
    assert (answer["content"], answer["finish_reason"], of.open) == ("", "tool_calls", 0)
    assert of.requests[0].stream  # otherwise the engine returns nothing before its own end


@pytest.mark.parametrize("stream", [False, True])
async def test_endless_call_is_cut(stream):
    """The answer ends with `length`, like any answer without an end, and the engine stops."""
    endless_call = CALL.replace("1}}", '"' + "x" * 140_000)
    of = model([endless_call[at : at + 7000] for at in range(0, 140_000, 7000)], endless=True)

    answered = added_up(await streamed(of)) if stream else await whole(of)

    [answer] = choices_of(answered)
    [call] = answer["calls"]
    assert (len(call["function"]["arguments"]), answer["finish_reason"]) == (131_072, "length")
    assert of.open == 0


async def test_legacy_functions_get_at_most_one_function_call():
    functions = [tool["function"] for tool in TOOLS]
    fields = {"tools": None, "functions": functions}
    for answered in (
        await whole(model([CALL, CALL]), **fields),
        added_up(await streamed(model([*CALL, *CALL]), **fields)),
    ):
        [answer] = choices_of(answered)
        assert answer["function_call"] == {"name": "now", "arguments": '{"a": 1}'}
        assert (answer["calls"], answer["finish_reason"]) == ([], "function_call")


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_custom_tool_call_has_text_input_and_openai_type(size):
    text = (
        '<tool_call>{"name": "code", "arguments": {"input": "print(\\"\\u00e9\\")\\n"}}</tool_call>'
    )
    pieces = [text[at : at + size] for at in range(0, len(text), size)]

    completion = await whole(model(pieces), tools=[CODE])
    events = await streamed(model(pieces), tools=[CODE])

    [answer] = choices_of(completion)
    called = {"name": "code", "input": 'print("é")\n'}
    assert answer["calls"] == [{"type": "custom", "custom": called}]
    deltas = [event["choices"][0]["delta"].get("tool_calls", [{}])[0] for event in events]
    assert [delta["type"] for delta in deltas if "type" in delta] == ["custom"]
    pieces_of_input = [delta["custom"]["input"] for delta in deltas if "custom" in delta]
    assert "".join(pieces_of_input) == called["input"]


async def test_reasoning_tokens_are_counted_shown_or_hidden():
    """Streamed and complete answers report the same count."""
    text = "<think>hm</think>Hi"
    include_usage = {"stream_options": {"include_usage": True}}
    for pieces in ([*text], [text]):
        for fields in ({}, {"include_reasoning": False}):
            completion = await whole(model(pieces), tools=None, **fields)
            events = await streamed(model(pieces), tools=None, **fields, **include_usage)

            for usage in (completion["usage"], events[-1]["usage"]):
                details = usage["completion_tokens_details"]
                entries = usage["completion_tokens"], details["reasoning_tokens"]
                assert entries == (len(text), len("hm</think>"))


async def test_include_reasoning_false_omits_the_reasoning():
    """Streamed and complete answers both omit it."""
    pieces = [*"<think>hm</think>Hi"]
    fields: dict[str, Any] = {"tools": None, "include_reasoning": False}

    of_whole = choices_of(await whole(model(pieces), **fields))
    of_stream = choices_of(added_up(await streamed(model(pieces), **fields)))

    assert (of_whole[0]["reasoning"], of_whole[0]["content"]) == ("", "Hi")
    assert of_stream == of_whole


def with_logprobs(text: str) -> FakeModel:
    def position(letter: str) -> dict[int, dict[str, Any]]:
        return {ord(letter): {"logprob": -1.0, "rank": 1, "decoded_token": letter}}

    deltas = [
        CompletionDelta(letter, [ord(letter)], logprobs=[position(letter)]) for letter in text
    ]
    last = CompletionDelta(finish_reason="stop")
    return FakeModel(
        [*([delta] for delta in deltas), [last]],
        output_format=output_format("qwen3"),
        template_variables=frozenset({"tools"}),
    )


async def test_logprobs_cover_every_token_once_in_order():
    """Each comes with the frame that its token leads to."""
    text = f"<think>hm</think>Hi {CALL}"
    fields = {"logprobs": True, "return_token_ids": True}

    events = await streamed(with_logprobs(text), **fields)
    completion = await whole(with_logprobs(text), **fields)

    choices = [event["choices"][0] for event in events]
    entries = [each for choice in choices for each in (choice["logprobs"] or {}).get("content", ())]
    assert "".join(token["token"] for token in entries) == text
    ids = [token for choice in choices for token in choice.get("token_ids", ())]
    assert ids == [ord(letter) for letter in text]
    assert completion["choices"][0]["logprobs"]["content"] == entries
    assert completion["choices"][0]["token_ids"] == ids


async def test_stream_interval_merges_events_without_changing_them():
    text = f"<think>hm</think>Hi there. {CALL}"

    many = await streamed(model([*text]))
    few = await streamed(model([*text]), stream_interval=8)

    assert len(few) < len(many) / 2
    assert choices_of(added_up(few)) == choices_of(added_up(many))


async def test_obfuscation_and_running_usage_cover_call_and_reasoning_chunks():
    options = {"include_obfuscation": True, "continuous_usage_stats": True, "include_usage": True}

    events = await streamed(model([*f"<think>hm</think>{CALL}"]), stream_options=options)

    entries = [event["usage"]["completion_tokens"] for event in events[1:]]
    assert entries == sorted(entries)
    assert all("obfuscation" in event for event in events[1:-1])


async def test_echo_puts_the_prefilled_text_before_the_parsed_answer():
    prefilled = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]
    fields = {"messages": prefilled, "continue_final_message": True, "echo": True}

    of_whole = choices_of(await whole(model([*"llo"]), **fields))
    of_stream = choices_of(added_up(await streamed(model([*"llo"]), **fields)))

    assert of_whole[0]["content"] == "Hello"
    assert of_stream == of_whole


PREFILLS = [
    ("deepseek_r1", "He", "llo", ("", "llo")),
    ("deepseek_r1", "<think>hm</think>He", "llo", ("", "llo")),
    ("deepseek_r1", "<think>h", "m</think>Hi", ("m", "Hi")),
    ("qwen3", "He", "llo", ("", "llo")),
    ("qwen3", "<think>h", "m</think>Hi", ("m", "Hi")),
]


@pytest.mark.parametrize(("family", "prefilled", "text", "expected"), PREFILLS)
async def test_prefilled_answer_continues_in_its_text_or_reasoning(
    family, prefilled, text, expected
):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": prefilled}]
    fields = {"tools": None, "messages": messages, "continue_final_message": True}

    [answer] = choices_of(await whole(model([*text], family), **fields))

    assert (answer["reasoning"], answer["content"]) == expected


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_the_stream_ends_the_generation(n):
    of = model([*CALL], endless=True)
    answer = await prepare(of, tools=TOOLS, n=n)

    async with aclosing(answer.bursts()) as bursts:
        await anext(bursts)
        assert of.open > 0

    assert of.open == 0


async def test_each_choice_stops_at_its_own_end():
    """None of these choices would end without the stop."""
    of = model([*CALL], endless=True)

    completion = await whole(of, parallel_tool_calls=False, n=3)

    assert [len(each["calls"]) for each in choices_of(completion)] == [1, 1, 1]
    assert of.open == 0


async def test_engine_failure_within_a_call_is_an_error():
    """The server does not treat it as the end of the call."""
    of = model([CALL[:40]], failure=InferenceFailed("gone"))

    with pytest.raises(InferenceFailed):
        await whole(of)


async def test_parser_gets_counts_and_special_tokens():
    """A stream asks for the number of tokens and for special tokens in the text."""
    of = model([CALL], "mistral")
    await streamed(of)

    [request] = of.requests
    assert (request.count_tokens, request.return_token_ids) == (True, False)
    assert request.relay is not None
    assert not request.sampling_params.skip_special_tokens


async def test_request_may_set_skip_special_tokens():
    """Its own value wins."""
    of = model([CALL], "mistral")
    await streamed(of, skip_special_tokens=True)

    assert of.requests[0].sampling_params.skip_special_tokens


async def test_request_omits_what_the_model_cannot_return():
    cannot = frozenset({"return_token_ids", "skip_special_tokens", "stream"})
    of = model(["hi"], "mistral", unsupported=cannot)
    await whole(of, parallel_tool_calls=False)

    [request] = of.requests
    assert (request.return_token_ids, request.stream) == (False, False)
    assert request.sampling_params.skip_special_tokens is None


async def test_plain_answers_bypass_the_parser():
    """A request needs the parser only for tools or reasoning."""
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        answer = await prepare(model(["hi"], "hermes"), stream=True, **{"tools": TOOLS, **fields})

        assert answer.parser is None
        assert answer.requests[0].relay is not None


async def test_tools_are_refused_for_a_model_without_a_tool_parser():
    with pytest.raises(InvalidRequest) as refused:
        await whole(model(["hi"], "text"))

    assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")


async def test_end_of_a_truncated_prompt_shows_if_reasoning_is_open():
    """Only the token ids of such a prompt are known."""

    class CutModel(FakeModel):
        async def render_chat(self, messages: Any, **options: Any) -> Any:
            prompt = await super().render_chat(messages, **options)
            return type(prompt)(None, prompt.token_ids)

    of = CutModel([[CompletionDelta("hm</think>Hi")], [CompletionDelta(finish_reason="stop")]],
                  output_format=output_format("qwen3"))  # fmt: skip

    messages = [{"role": "user", "content": "x" * 100 + "<think>"}]
    [answer] = choices_of(await whole(of, tools=None, messages=messages))

    assert (answer["reasoning"], answer["content"]) == ("hm", "Hi")
