import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend import sse
from schemas.chat_completions import (
    ChatCompletionChunk,
    ChatCompletionChunkChoice,
    ChoiceDelta,
)
from schemas.completions import Completion, CompletionChoice
from schemas.usage import CompletionTokensDetails, CompletionUsage, PromptTokensDetails

ID, CREATED = "id-1", 1_700_000_000
# Every kind of character that JSON or SSE could trip over, then any.
AWKWARD = 'a"\\/\n\r\t\0\x1f\x7f\x85é\u2028\u2029\ufeff😀'
texts = st.text(AWKWARD) | st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"]))
counts = st.integers(0, 2**40)
usages = st.builds(
    CompletionUsage,
    prompt_tokens=counts,
    completion_tokens=counts,
    total_tokens=counts,
    prompt_tokens_details=st.builds(PromptTokensDetails, cached_tokens=counts),
    completion_tokens_details=st.builds(
        CompletionTokensDetails,
        reasoning_tokens=counts,
        accepted_prediction_tokens=counts,
        rejected_prediction_tokens=counts,
    ),
)


def frames(
    shape: sse.ChunkShape, model: str = "m", *, usage_field: bool = False, obfuscate: bool = False
) -> sse.ChunkFrames:
    return sse.ChunkFrames(
        shape,
        {"id": ID, "created": CREATED, "model": model, "system_fingerprint": "fp"},
        choices=3,
        usage_field=usage_field,
        obfuscate=obfuscate,
    )


def event(dump: bytes) -> bytes:
    return b"data: " + dump + b"\n\n"


def chat_event(model: str, choices: list[ChatCompletionChunkChoice], **usage: Any) -> bytes:
    chunk = ChatCompletionChunk(
        id=ID,
        object="chat.completion.chunk",
        created=CREATED,
        model=model,
        system_fingerprint="fp",
        choices=choices,
        **usage,
    )
    return event(chunk.model_dump_json(exclude_unset=True).encode())


def chat_choice(
    index: int, delta: ChoiceDelta, reason: Any = None, **fields: Any
) -> ChatCompletionChunkChoice:
    return ChatCompletionChunkChoice(
        index=index, delta=delta, finish_reason=reason, **{"logprobs": None, **fields}
    )


def completion_event(model: str, choices: list[CompletionChoice]) -> bytes:
    chunk = Completion(
        id=ID,
        object="text_completion",
        created=CREATED,
        model=model,
        system_fingerprint="fp",
        choices=choices,
    )
    return event(chunk.model_dump_json(exclude_unset=True).encode())


@given(model=texts, text=texts, index=st.integers(0, 2), usage_field=st.booleans())
def test_chat_text_frame(model, text, index, usage_field):
    """A frame of chat text is the schema's own dump, byte for byte."""
    usage = {"usage": None} if usage_field else {}

    frame = frames(sse.CHAT_COMPLETION_CHUNK, model, usage_field=usage_field).text(index, text)

    assert chat_event(model, [chat_choice(index, ChoiceDelta(content=text))], **usage) == frame


@given(model=texts, text=texts, index=st.integers(0, 2))
def test_completion_text_frame(model, text, index):
    """A frame of completion text is the schema's own dump, byte for byte."""

    frame = frames(sse.COMPLETION_CHUNK, model).text(index, text)

    choice = CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)
    assert completion_event(model, [choice]) == frame


@given(model=texts, text=texts, index=st.integers(0, 2), usage_field=st.booleans())
@pytest.mark.parametrize("shape", [sse.CHAT_COMPLETION_CHUNK, sse.COMPLETION_CHUNK])
def test_around_text(shape, model, text, index, usage_field):
    """The bytes around a separately written JSON string give the same frame."""
    each = frames(shape, model, usage_field=usage_field)

    before, after = each.around_text(index)

    assert each.text(index, text) == before + orjson.dumps(text) + after


def _fields(usage: CompletionUsage) -> dict[str, Any]:
    """As serving writes them: without the fields that only some responses have."""
    return usage.model_dump(exclude_unset=True)


@given(usage=usages)
def test_usage_frame(usage):
    """The usage frame is the schema's own dump, with no choices."""

    frame = frames(sse.CHAT_COMPLETION_CHUNK, usage_field=True).usage(_fields(usage))

    assert chat_event("m", [], usage=usage) == frame


@given(usage=usages, text=texts)
def test_frame_with_usage_so_far(usage, text):
    """After `usage_so_far`, every frame has the counts."""
    each = frames(sse.CHAT_COMPLETION_CHUNK)

    each.usage_so_far(_fields(usage))

    choice = chat_choice(1, ChoiceDelta(content=text))
    assert chat_event("m", [choice], usage=usage) == each.text(1, text)
    ended = chat_choice(1, ChoiceDelta(), "stop")
    assert chat_event("m", [ended], usage=usage) == each.finish(1, "stop")


@pytest.mark.parametrize("may_call", [False, True])
@pytest.mark.parametrize("prompts", [[], [{"prompt_token_ids": [1, each]} for each in range(3)]])
def test_opening_frames(prompts, may_call):
    """Each choice of a chat opens with its role and its prompt's fields, in ascending order. Its
    content is null if it may call tools, because some clients show an empty text before a call.
    """

    opening = frames(sse.CHAT_COMPLETION_CHUNK).opening(prompts, may_call=may_call)

    delta = ChoiceDelta(role="assistant", content=None if may_call else "")
    each = zip(range(3), prompts or [{}] * 3, strict=True)
    assert b"".join(chat_event("m", [chat_choice(i, delta)], **tops) for i, tops in each) == opening


def test_completions_have_no_opening_frame():
    """A completion's first frame is its first text."""
    assert frames(sse.COMPLETION_CHUNK).opening() == b""


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_finish_frames(reason):
    """The last frame of a choice holds its reason and adds no text."""

    chat = frames(sse.CHAT_COMPLETION_CHUNK).finish(2, reason)
    completion = frames(sse.COMPLETION_CHUNK).finish(2, reason)

    assert chat_event("m", [chat_choice(2, ChoiceDelta(), reason)]) == chat
    choice = CompletionChoice(index=2, text="", logprobs=None, finish_reason=reason)
    assert completion_event("m", [choice]) == completion


LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


@given(text=texts, index=st.integers(0, 2))
def test_detailed_chat_frame(text, index):
    """A frame with log probabilities and token ids is the schema's own dump, byte for byte."""
    logprobs = {"content": [LOGPROB], "refusal": None}

    frame = frames(sse.CHAT_COMPLETION_CHUNK).detailed(index, text, logprobs, {"token_ids": [7]})

    choice = chat_choice(index, ChoiceDelta(content=text), logprobs=logprobs, token_ids=[7])
    assert chat_event("m", [choice]) == frame


CALL_DELTAS: list[dict[str, Any]] = [
    {"reasoning_content": "hm", "reasoning": "hm"},
    {"tool_calls": [{"index": 1, "id": "c", "type": "function",
                     "function": {"name": "f", "arguments": ""}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": '{"é'}}]},
    {"tool_calls": [{"index": 0, "id": "c", "type": "custom",
                     "custom": {"name": "f", "input": ""}}]},
    {"tool_calls": [{"index": 0, "custom": {"input": "x"}}]},
    {"function_call": {"name": "f", "arguments": ""}},
    {"function_call": {"arguments": "{}"}},
    {},
]  # fmt: skip


@pytest.mark.parametrize("delta", CALL_DELTAS, ids=str)
def test_delta_frame(delta):
    """A frame with any other chat delta is the schema's own dump, byte for byte."""
    logprobs = {"content": [LOGPROB], "refusal": None}

    frame = frames(sse.CHAT_COMPLETION_CHUNK).delta(1, delta, logprobs, {"token_ids": [7]})
    bare = frames(sse.CHAT_COMPLETION_CHUNK).delta(1, delta)

    told = ChoiceDelta.model_validate(delta)
    choice = chat_choice(1, told, logprobs=logprobs, token_ids=[7])
    assert chat_event("m", [choice]) == frame
    assert chat_event("m", [chat_choice(1, told)]) == bare


def test_padded_delta_frames():
    """Tool calls are padded like text."""
    padded = frames(sse.CHAT_COMPLETION_CHUNK, obfuscate=True)

    sizes = [len(padded.delta(0, {"function_call": {"arguments": "x" * n}})) for n in range(100)]

    assert len(set(sizes)) <= 5


def test_detailed_completion_frame():
    """Completions have the same fields in the places of their schema."""
    logprobs = {
        "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [None], "text_offset": [0]
    }  # fmt: skip

    frame = frames(sse.COMPLETION_CHUNK).detailed(1, "a", logprobs)

    choice = CompletionChoice(index=1, text="a", logprobs=logprobs, finish_reason=None)
    assert completion_event("m", [choice]) == frame


@given(text=texts)
def test_padded_frames_have_few_sizes(text):
    """With obfuscation, a frame's size reveals the text's length only in steps of 32 bytes."""
    padded = frames(sse.CHAT_COMPLETION_CHUNK, obfuscate=True)

    extra = len(padded.detailed(0, text)) - len(padded.detailed(0, ""))

    assert extra % 32 == 0


def test_padding_is_random():
    """Compression cannot remove it."""
    padded = frames(sse.CHAT_COMPLETION_CHUNK, obfuscate=True)

    first, second = (json.loads(payload(padded.detailed(0, "a"))) for _ in range(2))

    assert first["obfuscation"] != second["obfuscation"]


def payload(frame: bytes) -> bytes:
    return frame.removeprefix(b"data: ").removesuffix(b"\n\n")
