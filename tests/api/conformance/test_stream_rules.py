"""Each rule of tests/stream_rules.py, once kept and once broken."""

import json
from typing import Any

import pytest

from tests.stream_rules import Asked, OutOfOrder, StreamRules

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
ROLE = {"role": "assistant", "content": ""}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
DONE = "[DONE]"
ERROR = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": None}})


def chunk(delta: Any = None, *, index: int = 0, reason: str | None = None, **fields: Any) -> str:
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": reason}
    return json.dumps({**HEAD, "choices": [choice], **fields})


def text_chunk(*, index: int = 0, reason: str | None = None, **fields: Any) -> str:
    choice = {"index": index, "text": "a", "logprobs": None, "finish_reason": reason, **fields}
    return json.dumps({**HEAD, "object": "text_completion", "choices": [choice]})


def call(index: int | None = 0, **fields: Any) -> str:
    return chunk({"tool_calls": [{"index": index, **fields}]})


def run(asked: dict[str, Any], *events: str, chat: bool = True) -> str | None:
    rules = StreamRules(Asked.by(asked), chat=chat)
    for event in events:
        rules.feed(event)
    rules.finish()
    return rules.ended


BEGIN, A, END = chunk(ROLE), chunk({"content": "a"}), chunk(reason="stop")
WITH_USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PADDED = {"stream_options": {"include_obfuscation": True}}
LAST = json.dumps({**HEAD, "choices": [], "usage": USAGE})
NULL: dict[str, Any] = {"usage": None}
U_BEGIN, U_END = chunk(ROLE, **NULL), chunk(reason="stop", **NULL)
FIRST_CALL = call(id="c", type="function", function={"name": "f", "arguments": "{"})
SECOND_CALL = call(1, id="d", type="function", function={"name": "f", "arguments": "{}"})

BROKEN = {
    "begins without": [A, END, DONE],
    "has content ''": [chunk({"role": "assistant"}), END, DONE],
    "role comes again": [BEGIN, chunk(ROLE), END, DONE],
    "goes on after": [BEGIN, END, A, DONE],
    "never ''": [BEGIN, chunk({"content": "a"}, reason=""), END, DONE],
    "have ended": [BEGIN, A, DONE],
    "silence": [BEGIN, A],
    "an event follows \\[DONE\\]": [BEGIN, END, DONE, A],
    "an event follows an error": [BEGIN, ERROR, DONE],
    "looked like success": [BEGIN, END, ERROR],
    "chunks differ": [BEGIN, chunk(reason="stop", id="y"), DONE],
    "the object is": [chunk(ROLE, object="x"), chunk(reason="stop", object="x"), DONE],
    "usage that nobody": [BEGIN, END, LAST, DONE],
    "usage that nobody asked": [U_BEGIN, END, DONE],
    "nobody asked for choice 1": [BEGIN, chunk(ROLE, index=1), END, DONE],
    "padding unasked": [chunk(ROLE, obfuscation="x"), END, DONE],
    "no index": [BEGIN, call(None, id="c", function={"name": "f"})],
    "not numbered": [BEGIN, SECOND_CALL],
    "no id or name": [BEGIN, call(id="c")],
    "comes again: clients": [BEGIN, FIRST_CALL, FIRST_CALL],
    "tool_calls, and there is none": [BEGIN, chunk(reason="tool_calls"), DONE],
    "function_call, and there is none": [BEGIN, chunk(reason="function_call"), DONE],
    "a function call has no name": [BEGIN, chunk({"function_call": {"arguments": "{}"}})],
    "call's name comes again": [BEGIN, *[chunk({"function_call": {"name": "f"}})] * 2],
    "at once": [BEGIN, chunk({"content": "a", "tool_calls": []})],
    "two names": [BEGIN, chunk({"reasoning": "a"})],
}


@pytest.mark.parametrize(("words", "events"), BROKEN.items(), ids=str)
def test_broken_rule_is_detected(words, events):
    """Each rule of a plain stream, broken once."""
    with pytest.raises(OutOfOrder, match=words):
        run({}, *events)


BROKEN_AS_ASKED = [
    ("before those below", {"n": 2}, [chunk(ROLE, index=1), BEGIN]),
    ("have ended", {"n": 2}, [BEGIN, END, DONE]),
    ("no usage field", WITH_USAGE, [BEGIN, U_END, LAST, DONE]),
    ("without the usage", WITH_USAGE, [U_BEGIN, U_END, DONE]),
    ("usage before the end", WITH_USAGE, [chunk(ROLE, usage=USAGE), U_END, LAST, DONE]),
    ("usage before the end", WITH_USAGE, [U_BEGIN, LAST]),
    ("follows the usage", WITH_USAGE, [U_BEGIN, U_END, LAST, LAST]),
    ("neither", WITH_USAGE, [U_BEGIN, U_END, json.dumps({**HEAD, "choices": [], **NULL})]),
    ("backwards", CONTINUOUS, [chunk(ROLE, usage=USAGE),
                               chunk(usage={**USAGE, "completion_tokens": 0})]),
    ("not padded", PADDED, [BEGIN]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "asked", "events"), BROKEN_AS_ASKED)
def test_broken_rule_that_depends_on_the_request_is_detected(words, asked, events):
    """Rules that depend on the request's fields."""
    with pytest.raises(OutOfOrder, match=words):
        run(asked, *events)


def test_unrequested_logprobs_are_detected():
    """Only a request with `logprobs` gets log probabilities."""
    choice = {"index": 0, "delta": ROLE, "logprobs": {"content": []}, "finish_reason": None}

    with pytest.raises(OutOfOrder, match="logprobs"):
        run({}, json.dumps({**HEAD, "choices": [choice]}))


SECOND_TEXT, LAST_TEXT = text_chunk(index=1, reason="stop"), text_chunk(reason="stop")


@pytest.mark.parametrize(
    ("words", "events"),
    [
        ("tools", [text_chunk(reason="tool_calls"), DONE]),
        ("goes on", [text_chunk(reason="stop"), text_chunk()]),
        ("has text", [text_chunk().replace('"text"', '"delta"')]),
    ],
)
def test_completions_stream_out_of_order_is_detected(words, events):
    """Each rule of a completions stream, broken once."""
    with pytest.raises(OutOfOrder, match=words):
        run({"prompt": "a"}, *events, chat=False)
