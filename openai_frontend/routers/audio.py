"""POST /v1/audio/transcriptions, /v1/audio/translations and /v1/audio/speech."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.request_context.context import current_request
from openai_frontend.routers.multipart import Fields, file_of, read_form
from openai_frontend.routers.openapi import ERRORS, form_body, request_body
from openai_frontend.routers.request import (
    CancelOnDisconnect,
    hold_memory,
    read_body,
    resolve_model,
)
from openai_frontend.routers.routing import InferenceRoute
from openai_frontend.routers.streaming import (
    EventStream,
    ReadingPace,
    StreamedResponse,
    StreamLimits,
)
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.request.request_body import BodyReader, FormReader
from openai_frontend.serving.speech import MEDIA_TYPES, Speech, SpeechJob
from openai_frontend.serving.transcription import (
    Task,
    Transcriptions,
    TranscriptStream,
    complete,
)
from openai_frontend.text_relay import StreamWriter
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
    registry: ModelRegistry,
    transcriptions: Transcriptions,
    streams: StreamLimits,
    memory: MemoryBudget,
) -> APIRouter:
    """Both routes take a form with a file. `memory`: of its samples."""
    router = APIRouter(tags=["Audio"], route_class=InferenceRoute)
    transcription, translation = FormReader(TranscriptionRequest), FormReader(TranslationRequest)
    responses = {200: {"model": Transcription | TranscriptionVerbose}, **ERRORS}
    events = TranscriptTextDelta, TranscriptTextDone

    async def answer(
        request: Request, read: Callable[[Fields], SpeechToTextRequest], task: Task
    ) -> Response:
        form = await read_form(request)
        audio_request = read(form.fields)
        model = await resolve_model(registry, audio_request.model, "transcription")
        request_memory = hold_memory(memory, current_request().counting_inputs())
        with CancelOnDisconnect():  # decoding may take seconds
            job = await transcriptions.prepare(
                audio_request, file_of(form), model, task, request_memory
            )
        if audio_request.stream:
            return EventStream(TranscriptStream(job), job.bursts(), streams)
        with CancelOnDisconnect():
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


def speech_router(
    registry: ModelRegistry, speech: Speech, streams: StreamLimits, memory: MemoryBudget
) -> APIRouter:
    """Answers with audio, as it comes if the model sends it in parts. `memory`: of what is not
    sent yet.
    """
    router = APIRouter(tags=["Audio"], route_class=InferenceRoute)
    reader = BodyReader(CreateSpeechRequest)

    @router.post(
        "/v1/audio/speech",
        openapi_extra=request_body(CreateSpeechRequest),
        responses={200: {"content": _AUDIO}, **ERRORS},
    )
    async def create_speech(request: Request) -> Response:
        """Speaks a text."""
        speech_request = await reader.read(await read_body(request.receive))
        model = await resolve_model(registry, speech_request.model, "speech")
        job = speech.prepare(speech_request, model, hold_memory(memory))
        return AudioStream(job, streams)

    return router


class AudioStream(StreamedResponse):
    """Audio as it comes. A failure after the first of it closes the connection: audio has no place
    for an error.
    """

    comments = False

    def __init__(self, job: SpeechJob, limits: StreamLimits) -> None:
        super().__init__(limits, [(b"content-type", job.media_type.encode())])
        self._job = job

    def failure_data(self, failure: ErrorReply) -> None:
        """Audio that ends early must not look complete."""

    async def pump(self, writer: StreamWriter) -> bytes:
        """Waits for a slow client after each piece; the job keeps the rest, as samples."""
        pace, clock = ReadingPace(self._limits), asyncio.get_running_loop().time
        async with aclosing(self._job.audio()) as pieces:
            async for piece in pieces:
                self.start()
                writer(piece)
                deadline_s = pace.deadline_s(
                    waiting_bytes=self._job.memory.held_bytes,
                    written_bytes=writer.body_bytes,
                    now_s=clock(),
                )
                await self.drained_by(deadline_s)
        await self.drained()
        return b""
