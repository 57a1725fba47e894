"""The endpoints of docs/conformance.md and the types that declare their request fields."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from openai.resources import Models
from openai.types import EmbeddingCreateParams, completion_create_params
from openai.types.audio import (
    SpeechCreateParams,
    TranslationCreateParams,
    transcription_create_params,
)
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import BaseModel

from openai_frontend.serving.request.field_policy import (
    NEUTRAL_IN_CHAT,
    NEUTRAL_IN_COMPLETIONS,
    NEUTRAL_IN_EMBEDDINGS,
    NEUTRAL_IN_SPEECH,
    NEUTRAL_IN_TRANSCRIPTIONS,
)
from schemas.audio import CreateSpeechRequest, TranscriptionRequest, TranslationRequest
from schemas.chat_completions import ChatCompletionRequest
from schemas.completions import CompletionRequest
from schemas.embeddings import EmbeddingRequest
from tests.api.conformance.request_fields import RequestField, request_fields


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The request fields of one endpoint: those of the SDK, and those that only our schema has."""

    prefix: str  # of its fields in marks
    title: str
    sdk_fields: Sequence[RequestField]
    own_fields: Sequence[RequestField] = ()


def endpoint(
    prefix: str, title: str, sdk_type: Any, schema: type[BaseModel], refused: Iterable[str] = ()
) -> Endpoint:
    """Compares the two types by JSON path, because the kinds of a union may differ.

    `refused` lists fields that the gateway knows by name but its schema does not read.
    """
    sdk_fields = request_fields(sdk_type)
    known = {(each.path, each.kind) for each in sdk_fields}
    known |= {(f"{each.path}.{each.kind}", None) for each in sdk_fields if each.kind}
    own = [each for each in request_fields(schema) if (each.path, each.kind) not in known]
    own += [RequestField(each, each) for each in refused if (each, None) not in known]
    return Endpoint(prefix, title, sdk_fields, own)


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
        "completions",
        "POST /v1/completions",
        completion_create_params.CompletionCreateParamsStreaming,
        CompletionRequest,
        NEUTRAL_IN_COMPLETIONS,
    ),
    endpoint(
        "embeddings",
        "POST /v1/embeddings",
        EmbeddingCreateParams,
        EmbeddingRequest,
        NEUTRAL_IN_EMBEDDINGS,
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
