"""POST /v1/audio/transcriptions, /v1/audio/translations and /v1/audio/speech."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.multipart import Fields, file_of, read_form
from openai_frontend.routers.openapi import ERRORS, form_body, request_body
from openai_frontend.routers.request import CancelOnDisconnect, read_body, resolve_model
from openai_frontend.routers.routing import InferenceRoute
from openai_frontend.routers.streaming import EventStream, StreamLimits
from openai_frontend.serving.request.request_body import BodyReader, FormReader
from openai_frontend.serving.speech import MEDIA_TYPES, Speech, SpeechJob
from openai_frontend.serving.transcription import (
    Task,
    Transcriptions,
    TranscriptStream,
    complete,
)
from schemas.audio import (
    CreateSpeechRequest,
    SpeechToTextRequest,
    Transcription,
    TranscriptionRequest,
    TranscriptionVerbose,
    TranscriptTextDelta,
    TranscriptTextDone,
    TranslationRequest,
)

_TEXT = "text/plain; charset=utf-8"
_AUDIO: dict[str, Any] = {
    kind.partition(";")[0]: {"schema": {"type": "string", "contentMediaType": kind}}
    for kind in MEDIA_TYPES.values()
}


def transcription_router(
    registry: ModelRegistry, transcriptions: Transcriptions, streams: StreamLimits
) -> APIRouter:
    """Both routes take a form with a file."""
    router = APIRouter(tags=["audio"], route_class=InferenceRoute)
    transcription, translation = FormReader(TranscriptionRequest), FormReader(TranslationRequest)
    responses = {200: {"model": Transcription | TranscriptionVerbose}, **ERRORS}
    events = TranscriptTextDelta, TranscriptTextDone

    async def answer(
        request: Request, read: Callable[[Fields], SpeechToTextRequest], task: Task
    ) -> Response:
        form = await read_form(request)
        asked = read(form.fields)
        model = await resolve_model(request, registry, asked.model, "transcription")
        with CancelOnDisconnect(request.scope):  # decoding may take seconds
            job = await transcriptions.prepare(asked, file_of(form), model, task)
        if asked.stream:
            return EventStream(TranscriptStream(job), job.bursts(), streams)
        with CancelOnDisconnect(request.scope):
            written = await complete(job)
        if isinstance(written, str):
            return Response(written, media_type=_TEXT)
        return Response(orjson.dumps(written), media_type="application/json")

    @router.post(
        "/v1/audio/transcriptions",
        openapi_extra=form_body(TranscriptionRequest, *events),
        responses=responses,
    )
    async def create_transcription(request: Request) -> Response:
        """Transcribes audio in its language, complete or as a stream of events."""
        return await answer(request, transcription.read, "transcribe")

    @router.post(
        "/v1/audio/translations",
        openapi_extra=form_body(TranslationRequest, *events),
        responses=responses,
    )
    async def create_translation(request: Request) -> Response:
        """Transcribes audio in English, whatever its language."""
        return await answer(request, translation.read, "translate")

    return router


def speech_router(registry: ModelRegistry, speech: Speech) -> APIRouter:
    """Answers with audio, as it comes if the model sends it in parts."""
    router = APIRouter(tags=["audio"], route_class=InferenceRoute)
    reader = BodyReader(CreateSpeechRequest)

    @router.post(
        "/v1/audio/speech",
        openapi_extra=request_body(CreateSpeechRequest),
        responses={200: {"content": _AUDIO}, **ERRORS},
    )
    async def create_speech(request: Request) -> Response:
        """Speaks a text."""
        asked = await reader.read(await read_body(request.receive))
        model = await resolve_model(request, registry, asked.model, "speech")
        job = speech.prepare(asked, model)
        return AudioStream(job)

    return router


class AudioStream(Response):
    """Sends the status with the first audio, so that earlier failures keep their status. A later
    one closes the connection: audio has no place for an error.
    """

    def __init__(self, job: SpeechJob) -> None:
        self.status_code = 200
        self.raw_headers = [(b"content-type", job.media_type.encode())]
        self.background = None
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        started = False
        with CancelOnDisconnect(scope):
            async with aclosing(self._job.audio()) as parts:
                async for part in parts:
                    if not started:
                        started = True
                        await send(start)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
