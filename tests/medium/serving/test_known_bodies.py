"""Bodies that differ only in their prompt, as the turns of an agent do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request import request_body
from openai_frontend.serving.request.request_body import BodyReader, RepeatedBodyReader
from openai_frontend.triton import json_member
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FIELDS = {"model": "m", "temperature": 0.5, "tools": [TOOL], "unknown": {"messages": [1]}}


def reader() -> RepeatedBodyReader[ChatCompletionRequest]:
    return RepeatedBodyReader(ChatCompletionRequest, "messages", json_member)


def body(*contents: object, **fields: object) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


async def outcome(read: BodyReader[Any], text: bytes) -> object:
    """The request, or the error that the client gets."""
    try:
        if isinstance(read, RepeatedBodyReader):
            return (await read.read_known(text))[0]
        return await read.read(text)
    except InvalidRequest as error:
        return error.message, error.param, error.code


async def test_other_fields_are_the_same_object():
    known = reader()

    first, fields = await known.read_known(body("a", **FIELDS))
    second, again = await known.read_known(body("b", "c", **FIELDS))
    _, others = await known.read_known(body("b", "c", **{**FIELDS, "temperature": 0.6}))

    assert (fields is again, fields is others) == (True, False)
    assert [message["content"] for message in second.messages] == ["b", "c"]
    assert first.tools is second.tools
    assert (
        second.model_dump()
        == ChatCompletionRequest(**json.loads(body("b", "c", **FIELDS))).model_dump()
    )
    assert second.model_fields_set == first.model_fields_set
    assert second.model_extra == {"unknown": {"messages": [1]}}


_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["a", "", None, 1, 2**70, [], {}, [{"type": "text", "text": "x"}], True]),
    st.text(max_size=5),
)
_FIELDS = st.dictionaries(
    st.sampled_from(["n", "stop", "seed", "tools", "messages2", "stream", "x"]),
    st.sampled_from([1, "a", None, [TOOL], True, 2**70, -1]),
    max_size=3,
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.lists(_VALUES, max_size=3), _FIELDS), min_size=2, max_size=5))
async def test_same_outcome_as_without_memory(bodies):
    """The same request or the same error, whatever was read before."""
    known, plain = reader(), BodyReader(ChatCompletionRequest)

    for contents, fields in [*bodies, *bodies]:
        text = body(*contents, **fields)
        assert await outcome(known, text) == await outcome(plain, text)


LONG = "x" * 40_000


@pytest.mark.parametrize(
    "second",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user","content":NaN}]}',
        b'{"model":"m","messages":[{"role":"user","content":"NaN"}]}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"},]}',
        b'{"model":"m","messages":}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}]} x',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"messages":[]}',
        b'{"model":"m","mess\\u0061ges":[{"role":"user","content":"a"}]}',
        b'{"model":"m","messages":' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"' + LONG.encode() + b'"}]}',
        b'{"model":"m","messages":[{"role":"x","content":"' + LONG.encode() + b'"}]}',
    ],
)
async def test_odd_second_bodies(second):
    """A prompt is checked as in the whole body, with the same error."""
    known, plain = reader(), BodyReader(ChatCompletionRequest)
    await known.read_known(b'{"model":"m","messages":[{"role":"user","content":"a"}]}')

    assert await outcome(known, second) == await outcome(plain, second)


@pytest.mark.parametrize(
    "prompt", ["a", "", None, ["a", "b"], [1, 2], [[1], [2]], [], [[]], [1, "a"], {}, 2, LONG]
)
async def test_any_prompt_of_a_completion(prompt):
    """The union's own errors, and a prompt that may be null."""
    known, plain = (
        RepeatedBodyReader(CompletionRequest, "prompt", json_member),
        BodyReader(CompletionRequest),
    )
    await known.read_known(b'{"model": "m", "prompt": "a", "seed": 1}')
    text = json.dumps({"model": "m", "prompt": prompt, "seed": 1}).encode()

    assert await outcome(known, text) == await outcome(plain, text)


async def test_memory_is_bounded(monkeypatch):
    """The oldest are forgotten, and no prompt is kept."""
    monkeypatch.setattr(request_body, "_MAX_KNOWN_BYTES", 5000)
    known = reader()
    firsts = [(await known.read_known(body(LONG, seed=seed)))[1] for seed in range(10)]

    again = [(await known.read_known(body("b", seed=seed)))[1] for seed in (9, 0)]

    assert again[0] is firsts[9]
    assert again[1] is not firsts[0]
    assert {fields.request.messages for fields in firsts} == {None}
    assert known._known_bytes <= 5000
