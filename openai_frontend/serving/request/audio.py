"""The audio file of a request: checked, decoded in another process, and cut into windows."""

import asyncio
import hashlib
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from openai_frontend import request_record
from openai_frontend.errors import InvalidRequest, RequestTooLarge, ServerOverloaded
from openai_frontend.media.audio import FORMATS, format_of, pieces
from openai_frontend.media.fork_server import PoolUnavailable, Reply
from openai_frontend.media.stages import Stage
from openai_frontend.modalities import AudioInput, TranscriptionSupport
from schemas import models as schemas

MIN_SECONDS = 0.1  # OpenAI's
_SAMPLE_BYTES = 4
_AT_ONCE = 512 * 1024  # bytes that are hashed on the event loop, in 0.3 ms; more in a thread
PARAM = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """The server's limits on one audio file."""

    max_audio_bytes: int = 25 * 1024 * 1024
    max_audio_seconds: int = 1500
    max_audio_samples: int = 150_000_000  # of all channels, as they are in the file

    def of_model(self, support: TranscriptionSupport) -> schemas.AudioLimits:
        """For GET /v1/models."""
        return schemas.AudioLimits(
            formats=sorted(FORMATS),
            languages=list(support.languages),
            timestamps=support.timestamps,
            translation=support.translation,
            window_seconds=support.window_seconds,
            max_audio_bytes=self.max_audio_bytes,
            max_audio_seconds=self.max_audio_seconds,
        )


class MemoryBudget(Protocol):
    """The memory that request bodies share."""

    used_bytes: int

    def take(self, length: int) -> None:
        """Raises ServerOverloaded."""


class AudioObserver(Protocol):
    """Told of each file."""

    def decoded(self, model: str, size: int, seconds: float, took_s: float) -> None:
        """A file of so many bytes and seconds was decoded for a model of Triton."""

    def spoken(self, model: str, seconds: float) -> None:
        """A model of Triton made so many seconds of audio."""


class Codec(Protocol):
    """Decodes and encodes audio; `media.pool.WorkerPool` does it in other processes."""

    def submit(self, header: Any, frames: Sequence[Any]) -> "Future[Reply]":
        """The future raises ValueError or PoolUnavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioWindow:
    """A part of the audio that fits the model's window."""

    audio: AudioInput
    start_s: float
    seconds: float


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class DecodedAudio:
    """The audio of a request. Its samples count as memory of request bodies while it exists."""

    seconds: float
    windows: Sequence[AudioWindow]


class AudioReader:
    """Reads audio files. One per process."""

    def __init__(
        self, limits: AudioLimits, codec: Codec, memory: MemoryBudget, observer: AudioObserver
    ) -> None:
        self._limits = limits
        self._observer = observer
        self._codec = codec
        self._memory = memory

    async def read(
        self, data: bytes, support: TranscriptionSupport, model_name: str
    ) -> DecodedAudio:
        """The audio for a model. Raises InvalidRequest for a file that is invalid or too long."""
        began_ns = monotonic_ns()
        limits = self._limits
        if len(data) > limits.max_audio_bytes:
            message = (
                f"Invalid '{PARAM}': {len(data)} bytes; the limit is {limits.max_audio_bytes} "
                "bytes (max_audio_bytes)."
            )
            raise RequestTooLarge(message, param=PARAM)
        if (format := format_of(data)) is None:
            message = f"Invalid file format. Supported formats: {sorted(FORMATS)}."
            raise InvalidRequest(message, param=PARAM, code="invalid_file_format")
        task = {
            "work": "decode",
            "format": format,
            "rate": support.sample_rate,
            "window_s": support.window_seconds,
            "max_seconds": limits.max_audio_seconds,
            "max_samples": limits.max_audio_samples,
        }
        found, (samples,) = await run_codec(self._codec, task, data, PARAM, "invalid_audio")
        if found["seconds"] < MIN_SECONDS:
            message = (
                f"Audio file is too short: {found['seconds']:.3f} seconds. Minimum audio length "
                f"is {MIN_SECONDS} seconds."
            )
            raise InvalidRequest(message, param=PARAM, code="audio_too_short")
        _record(began_ns)
        took_s = (monotonic_ns() - began_ns) / 1e9
        self._observer.decoded(model_name, len(data), found["seconds"], took_s)
        self._memory.take(len(samples))
        decoded = DecodedAudio(seconds=found["seconds"], windows=())
        weakref.finalize(decoded, _give_back, self._memory, len(samples))
        cut = partial(_windows, found["cuts"], samples, support.sample_rate)
        decoded.windows = cut() if len(samples) <= _AT_ONCE else await asyncio.to_thread(cut)
        return decoded


def _record(began_ns: int) -> None:
    """For the request's trace."""
    if (record := request_record.current.get()) is not None:
        record.media_stages.append(Stage("audio file decode", began_ns, monotonic_ns()))


def _windows(cuts: list[int], samples: memoryview, rate: int) -> list[AudioWindow]:
    """The parts that fit the model's window, each with its digest."""
    windows = []
    for start, end in pieces(cuts, len(samples) // _SAMPLE_BYTES):
        part = samples[start * _SAMPLE_BYTES : end * _SAMPLE_BYTES]
        digest = hashlib.sha256(part).hexdigest()
        audio = AudioInput(samples=part, digest=digest, param=PARAM)
        seconds = (end - start) / rate
        windows.append(AudioWindow(audio=audio, start_s=start / rate, seconds=seconds))
    return windows


def _give_back(memory: MemoryBudget, length: int) -> None:
    memory.used_bytes -= length


async def run_codec(codec: Codec, task: Any, data: Any, param: str, code: str) -> Reply:
    """The reply to a task. A failure is an InvalidRequest about `param`, or ServerOverloaded."""
    try:
        return await asyncio.wrap_future(codec.submit(task, [data]))
    except PoolUnavailable as error:
        raise ServerOverloaded("Audio cannot be processed at the moment. Retry later.") from error
    except ValueError as error:
        raise InvalidRequest(f"Invalid '{param}': {error}.", param=param, code=code) from None
