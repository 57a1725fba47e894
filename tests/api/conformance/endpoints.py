"""The endpoints of docs/conformance.md and the types that declare their request fields."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import MessageCountTokensParams, message_create_params
from openai.resources import Models
from openai.types import (
    DecisionCreateParams,
    EmbeddingCreateParams,
    ModerationCreateParams,
    completion_create_params,
)
from openai.types.audio import (
    SpeechCreateParams,
    TranslationCreateParams,
    transcription_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import InputTokenCountParams, response_create_params
from pydantic import BaseModel

from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_CLASSIFICATION,
    NEUTRAL_IN_COMPLETIONS,
    NEUTRAL_IN_EMBEDDINGS,
    NEUTRAL_IN_MESSAGES,
    NEUTRAL_IN_RESPONSES,
    NEUTRAL_IN_SPEECH,
    NEUTRAL_IN_TRANSCRIPTIONS,
)
from schemas.audio import CreateSpeechRequest, TranscriptionRequest, TranslationRequest
from schemas.chat_completions import ChatCompletionRequest
from schemas.classification import ClassificationRequest
from schemas.completions import CompletionRequest
from schemas.decisions import DecisionRequest
from schemas.embeddings import EmbeddingRequest
from schemas.messages import MessagesRequest
from schemas.moderations import ModerationRequest
from schemas.responses import ResponsesRequest
from tests.api.conformance.request_fields import RequestField, request_fields


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The request fields of one endpoint: those of the SDK, and those that only our schema has."""

    prefix: str  # of its fields in marks
    title: str
    sdk_fields: Sequence[RequestField]
    own_fields: Sequence[RequestField] = ()
    note: str = ""
    shared: Mapping[str, str] = field(default_factory=dict)  # fields -> those with their members


def endpoint(
    prefix: str,
    title: str,
    sdk_type: Any,
    schema: type[BaseModel],
    refused: Iterable[str] = (),
    shared: Mapping[str, str] | None = None,
) -> Endpoint:
    """Compares the two types by JSON path, because the kinds of a union may differ.

    `refused` lists fields that the gateway knows by name but its schema does not read. `shared`
    lists fields whose members another field has too, where they are listed.
    """
    sdk_fields = list(dict.fromkeys(request_fields(sdk_type)))
    known = {(each.path, each.kind) for each in sdk_fields}
    known |= {(f"{each.path}.{each.kind}", None) for each in sdk_fields if each.kind}
    own = [each for each in request_fields(schema) if (each.path, each.kind) not in known]
    own += [RequestField(each, each) for each in refused if (each, None) not in known]
    for inner, around in (shared or {}).items():
        sdk_fields = _without_members(sdk_fields, inner, around)
    return Endpoint(prefix, title, sdk_fields, own, shared=shared or {})


def _without_members(fields: Sequence[RequestField], of: str, around: str) -> list[RequestField]:
    """Leaves out the members of a field. Raises if the other field lacks one of them."""
    names = {field.name for field in fields}
    members = {name for name in names if name.startswith(f"{of}.")}
    if missing := {name.replace(of, around, 1) for name in members} - names:
        raise ValueError(f"{of} has members that {around} lacks: {sorted(missing)}")
    return [field for field in fields if field.name not in members]


def similar_endpoint(
    prefix: str, title: str, request_type: Any, around: str, refused: Iterable[str] = ()
) -> Endpoint:
    """Has fields of another endpoint, which shows their members. `refused` as of `endpoint`."""
    fields = [field for field in request_fields(request_type) if "." not in field.name]
    fields += [RequestField(each, each) for each in refused]
    note = f"The members of these fields are handled as those of `{around}`, by the same code."
    return Endpoint(prefix, title, fields, note=note)


def resource_fields(resource: type) -> list[RequestField]:
    """The methods of an SDK resource and their arguments, for endpoints without a request type."""
    fields = []
    for name, call in vars(resource).items():
        if name.startswith(("_", "with_")) or not inspect.isfunction(call):
            continue
        fields.append(RequestField(name, name))
        parameters = inspect.signature(call).parameters
        own = [each for each in parameters if each not in ("self", "timeout")]
        names = [f"{name}.{each}" for each in own if not each.startswith("extra_")]
        fields += [RequestField(each, each) for each in names]
    return fields


ENDPOINTS = (
    endpoint(
        "chat",
        "POST /v1/chat/completions",
        chat_create_params.CompletionCreateParamsStreaming,
        ChatCompletionRequest,
        NEUTRAL_IN_CHAT,
    ),
    endpoint(
        "responses",
        "POST /v1/responses",
        response_create_params.ResponseCreateParamsStreaming,
        ResponsesRequest,
        NEUTRAL_IN_RESPONSES,
        {
            "input.custom_tool_call_output.output": "input.function_call_output.output",
            "input.function_call_output.output": "input.content",
            "input.tool_search_output.tools": "tools",
            "input.developer.tools": "tools",
            "tools.namespace.tools": "tools",
        },
    ),
    similar_endpoint(
        "input_tokens",
        "POST /v1/responses/input_tokens",
        InputTokenCountParams,
        "POST /v1/responses",
    ),
    endpoint(
        "messages",
        "POST /v1/messages",
        message_create_params.MessageCreateParamsStreaming,
        MessagesRequest,
        NEUTRAL_IN_MESSAGES,
        {
            **{
                f"messages.user.content.tool_result.content.{kind}": f"messages.user.content.{kind}"
                for kind in ("document", "image", "search_result", "text")
            },
            "messages.user.content.document.source.content.image": "messages.user.content.image",
            "messages.user.content.document.source.content.text": "messages.user.content.text",
        },
    ),
    similar_endpoint(
        "count_tokens",
        "POST /v1/messages/count_tokens",
        MessageCountTokensParams,
        "POST /v1/messages",
    ),
    endpoint(
        "completions",
        "POST /v1/completions",
        completion_create_params.CompletionCreateParamsStreaming,
        CompletionRequest,
        NEUTRAL_IN_COMPLETIONS,
    ),
    endpoint(
        "decisions",
        "POST /v1/decisions",
        DecisionCreateParams,
        DecisionRequest,
        shared={
            "input.custom_tool_call_output.output": "input.function_call_output.output",
            "input.function_call_output.output.input_image": "input.user.content.input_image",
            "input.function_call_output.output.input_text": "input.user.content.input_text",
            "questions.choice.instructions": "questions.predicate.instructions",
            "questions.score.instructions": "questions.predicate.instructions",
        },
    ),
    endpoint(
        "embeddings",
        "POST /v1/embeddings",
        EmbeddingCreateParams,
        EmbeddingRequest,
        NEUTRAL_IN_EMBEDDINGS,
    ),
    similar_endpoint(
        "classify",
        "POST /v1/classify",
        ClassificationRequest,
        "POST /v1/embeddings",
        NEUTRAL_IN_CLASSIFICATION,
    ),
    endpoint(
        "moderations",
        "POST /v1/moderations",
        ModerationCreateParams,
        ModerationRequest,
        NEUTRAL_IN_CLASSIFICATION,
    ),
    endpoint(
        "transcriptions",
        "POST /v1/audio/transcriptions",
        transcription_create_params.TranscriptionCreateParamsStreaming,
        TranscriptionRequest,
        NEUTRAL_IN_TRANSCRIPTIONS,
    ),
    endpoint(
        "translations",
        "POST /v1/audio/translations",
        TranslationCreateParams,
        TranslationRequest,
        NEUTRAL_IN_TRANSCRIPTIONS,
    ),
    endpoint(
        "speech",
        "POST /v1/audio/speech",
        SpeechCreateParams,
        CreateSpeechRequest,
        NEUTRAL_IN_SPEECH,
    ),
    Endpoint("models", "/v1/models", resource_fields(Models)),
)
