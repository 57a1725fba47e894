"""Speech: from a text to a request for a model that speaks, from its samples to audio bytes."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy

from openai_frontend.admission.memory_budget import RequestMemory
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.media.audio import PCM_RATE, wav_header
from openai_frontend.media.modalities import SpeechRequest, SpeechSupport
from openai_frontend.request_context.context import RequestContext, current_request
from openai_frontend.serving.admission.concurrency_limit import merge_streams
from openai_frontend.serving.admission.model import Generates
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.output.completion_job import new_id
from openai_frontend.serving.request.audio import AudioObserver, Codec, run_codec
from openai_frontend.serving.request.field_policy import NEUTRAL_IN_SPEECH, FieldPolicy
from openai_frontend.serving.request.sampling import unsupported
from schemas.audio import CreateSpeechRequest

MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
# OpenAI's client cannot leave the voice out, so a model with one voice takes this name
DEFAULT_VOICE = "default"
MAX_SPOKEN_BYTES = 256 * 1024 * 1024  # of a waveform: 45 minutes at 24 kHz
_SAMPLE_BYTES = 4
_PIECE_BYTES = 256 * 1024  # of samples: converting them takes 0.5 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechJob:
    """A text that is ready to be spoken. Its audio counts in memory until it is taken."""

    model: Generates
    context: RequestContext
    admission: Admission
    request: SpeechRequest
    format: str
    rate: int  # Hz, of the model's waveform
    streams: bool  # whether audio is sent as it comes
    codec: Codec
    observer: AudioObserver
    memory: RequestMemory

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.format]

    async def audio(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the audio file in pieces, which may be taken at any speed: the model does
        not wait. Closing the generator cancels the request.

        Raises InferenceFailed if the model sends no waveform, or one without an end, and
        ServerOverloaded.
        """
        async with aclosing(self._streamed() if self.streams else self._encoded()) as pieces:
            async for piece in pieces:
                yield piece

    async def _streamed(self) -> AsyncGenerator[bytes, None]:
        # Not before the first samples: the status is sent with the first bytes
        head = wav_header(self.rate) if self.format == "wav" else b""
        # A task takes the samples from the model, whose slot is free once the last has come
        async with aclosing(merge_streams([self._samples()])) as bursts:
            async for burst in bursts:
                for _, samples in burst:
                    if head:
                        yield head
                        head = b""
                    for piece in _pieces(samples):
                        yield _pcm(piece)
                        await asyncio.sleep(0)  # a part may have megabytes
                    self.memory.give_back(len(samples))

    async def _encoded(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._samples()) as parts:
            whole = b"".join([samples async for samples in parts])
        task = {"work": "encode", "format": self.format, "rate": self.rate}
        _, (written,) = await run_codec(self.codec, task, whole, "input", "invalid_value")
        self.memory.take(len(written))
        self.memory.give_back(len(whole))
        del whole
        for piece in _pieces(written):
            yield bytes(piece)
        self.memory.give_back(len(written))

    async def _samples(self) -> AsyncGenerator[memoryview, None]:
        """The waveform's parts, in one slot of the model, which ends with the last."""
        count = 0
        async with self.admission.enter(self.context, self.model, self.request) as permit:
            try:
                async with aclosing(permit.speak(self.request)) as parts:
                    async for samples in parts:
                        count += len(samples)
                        if count > MAX_SPOKEN_BYTES:
                            raise InferenceFailed("The model's waveform is too long.")
                        self.memory.take(len(samples))
                        yield samples
                if not count:
                    raise InferenceFailed("The model returned no waveform.")
            finally:
                self.observer.spoken(self.model.model_name, count / _SAMPLE_BYTES / self.rate)


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]


def _pcm(samples: memoryview) -> bytes:
    """Signed 16-bit little-endian samples."""
    values = numpy.frombuffer(samples, "<f4")
    scaled = numpy.nan_to_num(values).clip(-1.0, 1.0) * 32767.0
    return bytes(scaled.round().astype("<i2").data)


class Speech:
    """POST /v1/audio/speech, independent of HTTP."""

    def __init__(
        self,
        policy: FieldPolicy,
        admission: Admission,
        codec: Codec,
        observer: AudioObserver,
    ) -> None:
        self._policy = policy
        self._admission = admission
        self._codec = codec
        self._observer = observer

    def prepare(
        self, request: CreateSpeechRequest, model: Generates, memory: RequestMemory
    ) -> SpeechJob:
        """Raises for a full queue, and for what this model does not support."""
        support = model.speech
        if support is None:
            message = f"The model '{model.name}' does not speak."
            raise InvalidRequest(message, param="model", code="unsupported_model")
        self._admission.check(current_request(), model)
        self._policy.check_extra(request, NEUTRAL_IN_SPEECH)
        format = _format(request)
        spoken = SpeechRequest(
            request_id=new_id("speech"),
            text=request.input,
            voice=_voice(request, support),
            speed=_supported("speed", request.speed, (1,), support),
            instructions=_supported("instructions", request.instructions, ("",), support),
        )
        rate = support.sample_rate
        written_as_is = format == "wav" or (format == "pcm" and rate == PCM_RATE)
        return SpeechJob(
            model=model,
            context=current_request(),
            admission=self._admission,
            request=spoken,
            format=format,
            rate=rate,
            streams=support.streams and written_as_is,
            codec=self._codec,
            observer=self._observer,
            memory=memory,
        )


def _format(request: CreateSpeechRequest) -> str:
    if request.stream_format == "sse":
        message = "Unsupported value: 'stream_format' sse is not supported; use audio."
        raise InvalidRequest(message, param="stream_format", code="unsupported_value")
    format = request.response_format or "mp3"
    if format not in MEDIA_TYPES:
        listed = ", ".join(MEDIA_TYPES)
        message = f"Unsupported value: 'response_format' {format} is not supported; use {listed}."
        raise InvalidRequest(message, param="response_format", code="unsupported_value")
    return format


def _voice(request: CreateSpeechRequest, support: SpeechSupport) -> str | None:
    voice = request.voice
    name = voice if voice is None or isinstance(voice, str) else voice.id
    if name == DEFAULT_VOICE:
        return None
    if name is not None and "voice" not in support.fields:
        message = (
            "Unsupported parameter: 'voice' is not supported with this model, which has one voice. "
            f"Leave it out, or send '{DEFAULT_VOICE}'."
        )
        raise InvalidRequest(message, param="voice", code="unsupported_parameter")
    return name


def _supported(name: str, value: Any, neutral: Sequence[Any], support: SpeechSupport) -> Any:
    """The value for the model; None if the request leaves it out, or the model needs none."""
    if value is None or name in support.fields:
        return value
    if value not in neutral:
        raise unsupported(name)
    return None
