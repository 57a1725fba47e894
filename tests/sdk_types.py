"""Every answer of the gateway, read by the types of the installed `openai` package, strictly.

Strictly: each field that the SDK requires, of exactly its type; fields that it does not know pass.
"""

import base64
import re
from typing import Literal, TypeVar

import openai
import orjson
from openai.types import Completion, CreateEmbeddingResponse, Model, completion_choice
from openai.types.chat import ChatCompletion, ChatCompletionChunk, chat_completion_chunk
from openai.types.shared import ErrorObject
from pydantic import BaseModel, ConfigDict


class _ModelList(BaseModel):
    """The SDK's page of models holds no `object`; the API does."""

    object: Literal["list"]
    data: list[Model]


class _EchoLogprobs(completion_choice.Logprobs):
    """OpenAI sends null for an echoed prompt's first token, which the SDK's type leaves out."""

    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class _CompletionChoice(completion_choice.CompletionChoice):
    logprobs: _EchoLogprobs | None = None


class _Completion(Completion):
    choices: list[_CompletionChoice]  # type: ignore[assignment]


class _StreamedChoice(_CompletionChoice):
    """The SDK has one type for whole answers and chunks; in chunks the reason is null at first."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class _CompletionChunk(Completion):
    choices: list[_StreamedChoice]  # type: ignore[assignment]


class _CustomCall(BaseModel):
    name: str | None = None
    input: str | None = None


class _CallDelta(chat_completion_chunk.ChoiceDeltaToolCall):
    """The API streams calls of custom tools too, which the SDK's type leaves out."""

    type: Literal["function", "custom"] | None = None  # type: ignore[assignment]
    custom: _CustomCall | None = None


class _Delta(chat_completion_chunk.ChoiceDelta):
    tool_calls: list[_CallDelta] | None = None  # type: ignore[assignment]


class _ChunkChoice(chat_completion_chunk.Choice):
    delta: _Delta


class _ChatCompletionChunk(ChatCompletionChunk):
    choices: list[_ChunkChoice]  # type: ignore[assignment]


class _Error(ErrorObject):
    """All four words stand in every error, null or not; `code` and `param` are never absent."""

    code: str | None
    param: str | None


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid")

    error: _Error


BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": _Completion,
    "/v1/embeddings": CreateEmbeddingResponse,
    "/v1/models": _ModelList,
    "/v1/models/.+": Model,
}
EVENTS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": _ChatCompletionChunk,
    "/v1/completions": _CompletionChunk,
}


def check_body(path: str, body: bytes) -> None:
    """Raises ValueError where a 200's body is not what the SDK's types say of this path."""
    schema = _of_path(BODIES, path)
    if schema is CreateEmbeddingResponse:
        body = _as_floats(body)
    if schema is not None:
        _read(schema, body)


def check_event(path: str, data: bytes) -> None:
    """The same for one event of a stream; an error event is an error body."""
    if data == b"[DONE]":
        return
    schema = _of_path(EVENTS, path)
    if "error" in orjson.loads(data):
        check_error(data)
    elif schema is not None:
        _read(schema, data)


def check_error(body: bytes) -> None:
    """Raises ValueError where the body is not an error that every client can read."""
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
    orjson.loads(body)  # pydantic takes NaN and Infinity, which are no JSON
    return schema.model_validate_json(body, strict=True)


def _as_floats(body: bytes) -> bytes:
    """Vectors in base64 as the SDK decodes them; its type knows floats alone."""
    answer = orjson.loads(body)
    for each in answer.get("data", ()):
        if isinstance(each["embedding"], str):
            numbers = memoryview(base64.b64decode(each["embedding"], validate=True)).cast("f")
            each["embedding"] = numbers.tolist()
    return orjson.dumps(answer)
