"""Checks every response of the gateway strictly by the types of the installed `openai` package, and
those of Anthropic's API by the package `anthropic`.

Strictly: each field that the SDK requires, with exactly its type; unknown fields pass.
"""

import base64
import re
from typing import Literal, TypeVar

import openai
import orjson
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from openai.types import (
    Completion,
    CreateEmbeddingResponse,
    Decision,
    Embedding,
    Model,
    completion_choice,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk, chat_completion_chunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.shared import ErrorObject
from pydantic import BaseModel, ConfigDict, TypeAdapter


class _ModelList(BaseModel):
    """The SDK's page of models has no `object`; the API does."""

    object: Literal["list"]
    data: list[Model]


class _EchoLogprobs(completion_choice.Logprobs):
    """OpenAI sends null for an echoed prompt's first token, which the SDK's type does not allow."""

    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class _CompletionChoice(completion_choice.CompletionChoice):
    logprobs: _EchoLogprobs | None = None


class _Completion(Completion):
    choices: list[_CompletionChoice]  # type: ignore[assignment]


class _StreamedChoice(_CompletionChoice):
    """The SDK's one type for answers and chunks; in chunks finish_reason is null at first."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class _CompletionChunk(Completion):
    choices: list[_StreamedChoice]  # type: ignore[assignment]


class _CustomCall(BaseModel):
    name: str | None = None
    input: str | None = None


class _CallDelta(chat_completion_chunk.ChoiceDeltaToolCall):
    """The API also streams calls of custom tools, which the SDK's type lacks."""

    type: Literal["function", "custom"] | None = None  # type: ignore[assignment]
    custom: _CustomCall | None = None


class _Delta(chat_completion_chunk.ChoiceDelta):
    tool_calls: list[_CallDelta] | None = None  # type: ignore[assignment]


class _ChunkChoice(chat_completion_chunk.Choice):
    delta: _Delta


class _ChatCompletionChunk(ChatCompletionChunk):
    choices: list[_ChunkChoice]  # type: ignore[assignment]


class _Embedding(Embedding):
    """Models of tokens' vectors have several, which no model of OpenAI has."""

    embedding: list[float] | list[list[float]]  # type: ignore[assignment]


class _Embeddings(CreateEmbeddingResponse):
    data: list[_Embedding]  # type: ignore[assignment]


class _Error(ErrorObject):
    """Every error has all four members, null or not; `code` and `param` are never absent."""

    code: str | None
    param: str | None


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid")

    error: _Error


BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": _Completion,
    "/v1/decisions": Decision,
    "/v1/embeddings": _Embeddings,
    "/v1/models": _ModelList,
    "/v1/models/.+": Model,
    "/v1/responses": Response,
    "/v1/responses/input_tokens": InputTokenCountResponse,
}
EVENTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": _ChatCompletionChunk,
    "/v1/completions": _CompletionChunk,
}


def check_body(path: str, body: bytes) -> None:
    """Raises ValueError if the body of a 200 differs from the SDK's types for this path."""
    schema = _of_path(BODIES, path)
    if schema is _Embeddings:
        body = _as_floats(body)
    if schema is not None:
        _read(schema, body)


_RESPONSE_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def check_response_event(data: bytes) -> None:
    """The same for one event of a response's stream."""
    if data != b"[DONE]":
        _RESPONSE_EVENT.validate_json(data, strict=True)


def check_event(path: str, data: bytes) -> None:
    """The same for one event of a stream; an error event has an error body."""
    if data == b"[DONE]":
        return
    schema = _of_path(EVENTS, path)
    if "error" in orjson.loads(data):
        check_error(data)
    elif schema is not None:
        _read(schema, data)


class _ModelInfos(BaseModel):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


_ANTHROPIC: dict[str, type[BaseModel]] = {
    "/v1/messages": Message,
    "/v1/messages/count_tokens": MessageTokensCount,
    "/v1/models": _ModelInfos,
    "/v1/models/.+": ModelInfo,
}
_ANTHROPIC_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def check_anthropic_body(path: str, body: bytes) -> None:
    """Raises ValueError if the body of a 200 differs from Anthropic's types for this path."""
    schema = _of_path(_ANTHROPIC, path)
    if schema is not None:
        _read(schema, body)


def check_anthropic_event(data: bytes) -> None:
    """The same for one event of a stream; the SDK has no type for two of them."""
    if orjson.loads(data)["type"] not in ("ping", "error"):
        _ANTHROPIC_EVENT.validate_json(data, strict=True)


def check_error(body: bytes) -> None:
    """Raises ValueError if the body is not an error that every client can parse."""
    error = _read(_Envelope, body).error
    raised = openai.APIError(error.message, request=None, body=error.model_dump())  # type: ignore[arg-type]
    read = (raised.code, raised.param, raised.type)
    if read != (error.code, error.param, error.type):
        raise ValueError(f"the SDK reads {read} from {body!r}")


Schema = type[BaseModel]


def _of_path(table: dict[str, Schema], path: str) -> Schema | None:
    return next((table[each] for each in table if re.fullmatch(each, path)), None)


Read = TypeVar("Read", bound=BaseModel)


def _read(schema: type[Read], body: bytes) -> Read:
    orjson.loads(body)  # pydantic accepts NaN and Infinity, which are not JSON
    return schema.model_validate_json(body, strict=True)


def _as_floats(body: bytes) -> bytes:
    """Decodes base64 vectors as the SDK does; its type allows only floats."""
    answer = orjson.loads(body)
    for each in answer.get("data", ()):
        if "sparse_embedding" in each:  # ours: the dense one is absent unless requested
            each.setdefault("embedding", [])
        if isinstance(each["embedding"], str):
            numbers = memoryview(base64.b64decode(each["embedding"], validate=True)).cast("f")
            each["embedding"] = numbers.tolist()
    return orjson.dumps(answer)
