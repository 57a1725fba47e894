"""The audio of a request. A file to be transcribed is decoded in another process, and cut into
windows; files in messages are decoded by the engine that gets them.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any, Protocol

from pybase64 import b64decode

from openai_frontend.admission.memory_budget import RequestMemory
from openai_frontend.errors import InvalidRequest, RequestTooLarge, ServerOverloaded
from openai_frontend.media.audio import FORMATS, format_of, pieces
from openai_frontend.media.fork_server import PoolUnavailable, Reply
from openai_frontend.media.modalities import (
    AudioFile,
    AudioInput,
    AudioSupport,
    TranscriptionSupport,
)
from openai_frontend.media.stages import Stage
from openai_frontend.request_context.context import current_record
from openai_frontend.serving.admission.model import Describes
from openai_frontend.serving.request import media_parts
from openai_frontend.serving.request.media_parts import (
    Base64Text,
    DataURLs,
    Fetching,
    MediaPart,
    NamedMedia,
    NotBase64,
    PartReader,
    RemoteItem,
    check_base64,
)
from schemas import models as schemas

MIN_SECONDS = 0.1  # OpenAI's
_SAMPLE_BYTES = 4
_AT_ONCE = 512 * 1024  # bytes that are hashed on the event loop, in 0.3 ms; more in a thread
PARAM = "file"
_KNOWN_FORMATS = 4096
_HEAD_BYTES = 12  # that show the format
_URLS = DataURLs(
    what="audio",
    example="data:audio/wav;base64,YXVkaW8gYnl0ZXMgaGVyZQ==",
    code="invalid_audio_url",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """The server's limits on one audio file."""

    max_audio_bytes: int = 25 * 1024 * 1024
    max_audio_seconds: int = 1500
    max_audio_samples: int = 150_000_000  # of all channels, as they are in the file
    max_audio_files: int = 16  # per chat

    def files_of(self, support: AudioSupport) -> int:
        """The files that a chat with the model may have."""
        own = support.max_per_request
        return self.max_audio_files if own is None else min(own, self.max_audio_files)

    def in_chats(self, support: AudioSupport) -> schemas.InputAudioLimits:
        """For GET /v1/models."""
        own = support.max_seconds
        return schemas.InputAudioLimits(
            formats=sorted(FORMATS),
            max_audio_files=self.files_of(support),
            max_audio_bytes=self.max_audio_bytes,
            max_audio_seconds=self.max_audio_seconds
            if own is None
            else min(own, self.max_audio_seconds),
            max_tokens_per_audio=support.max_tokens_per_audio,
        )

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


class AudioObserver(Protocol):
    """Receives the facts of each file."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedAudio:
    """The audio of a request."""

    seconds: float
    windows: Sequence[AudioWindow]


class AudioReader:
    """Reads audio files. One per process."""

    def __init__(self, limits: AudioLimits, codec: Codec, observer: AudioObserver) -> None:
        self._limits = limits
        self._observer = observer
        self._codec = codec

    async def read(
        self, data: bytes, support: TranscriptionSupport, model_name: str, memory: RequestMemory
    ) -> DecodedAudio:
        """The audio for a model, whose samples are taken from `memory`.

        Raises InvalidRequest for a file that is invalid or too long, ServerOverloaded.
        """
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
        memory.take(len(samples))
        cut = partial(_windows, found["cuts"], samples, support.sample_rate)
        windows = cut() if len(samples) <= _AT_ONCE else await asyncio.to_thread(cut)
        return DecodedAudio(seconds=found["seconds"], windows=windows)


def _record(began_ns: int) -> None:
    """For the request's trace."""
    if (record := current_record()) is not None:
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


async def run_codec(codec: Codec, task: Any, data: Any, param: str, code: str) -> Reply:
    """The reply to a task. A failure is an InvalidRequest about `param`, or ServerOverloaded."""
    try:
        return await asyncio.wrap_future(codec.submit(task, [data]))
    except PoolUnavailable as error:
        raise ServerOverloaded("Audio cannot be processed at the moment. Retry later.") from error
    except ValueError as error:
        raise InvalidRequest(f"Invalid '{param}': {error}.", param=param, code=code) from None


class AudioFileReader(PartReader[AudioFile]):
    """Reads `input_audio` and `audio_url` parts. One per process: it knows the formats of files
    that it has seen, and those that clients have named.
    """

    plural = "audio files"
    urls = _URLS

    def __init__(
        self,
        limits: AudioLimits,
        on_read: Callable[[str, Sequence[AudioFile]], None] | None = None,
        named: NamedMedia | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        """`named`: None for none."""
        super().__init__(named or NamedMedia(0), on_read, limits.max_audio_bytes, fetching)
        self._limits = limits
        self._formats: OrderedDict[str, str] = OrderedDict()  # by digest

    def most(self, model: Describes) -> int | None:
        return None if model.facts.audio is None else self._limits.files_of(model.facts.audio)

    def sent(self, each: MediaPart, model: Describes) -> Base64Text | RemoteItem | None:
        kind: str = each.part["type"]
        value, param = each.part.get(kind), f"{each.place}.{kind}"
        if value is None:
            return None
        if kind == "audio_url":
            is_object = isinstance(value, dict)
            url, param = (value["url"], f"{param}.url") if is_object else (value, param)
            return self.at(url, "", param)
        sent = Base64Text(value["data"], 0, value["format"], f"{param}.data")
        self.check_bytes(sent)
        return sent

    def items(self, sent: Sequence[Base64Text | AudioFile]) -> tuple[AudioFile, ...]:
        return tuple(self._file(each) if isinstance(each, Base64Text) else each for each in sent)

    def stored(self, item: AudioFile, model: Describes) -> AudioFile:
        return item

    def _file(self, item: Base64Text) -> AudioFile:
        base64 = item.text[item.start :]
        try:
            digest = media_parts.digest(base64)
            format = self._formats.get(digest)
            if format is None:
                format = self._formats[digest] = _format(base64, item.param)
                if len(self._formats) > _KNOWN_FORMATS:
                    self._formats.popitem(last=False)
        except NotBase64:
            raise _not_base64(item) from None
        if item.option not in ("", format):
            param = item.param.removesuffix("data") + "format"
            message = f"Invalid '{param}': the audio is {format}, not {item.option}."
            raise InvalidRequest(message, param=param, code="invalid_file_format")
        return AudioFile(
            base64=base64,
            digest=digest,
            format=format,
            max_seconds=self._limits.max_audio_seconds,
            max_samples=self._limits.max_audio_samples,
            param=item.param,
        )

    def oversized(self, size: str, param: str) -> InvalidRequest:
        message = (
            f"Invalid '{param}': {size} bytes; the limit is {self._limits.max_audio_bytes} "
            "bytes per audio file (max_audio_bytes). Send a shorter file, or MP3."
        )
        return InvalidRequest(message, param=param, code="invalid_audio")


def _format(base64: str, param: str) -> str:
    """The format by the first bytes. The whole text is checked, not decoded. Raises NotBase64."""
    check_base64(base64)
    format = format_of(b64decode(base64[: _HEAD_BYTES * 4 // 3]))
    if format is None:
        message = f"Invalid '{param}': its format is none of the supported: {sorted(FORMATS)}."
        raise InvalidRequest(message, param=param, code="invalid_file_format")
    return format


def _not_base64(item: Base64Text) -> InvalidRequest:
    if item.start:
        return _URLS.error(item.param, "a value that is not valid base64")
    message = f"Invalid '{item.param}': expected base64-encoded audio."
    return InvalidRequest(message, param=item.param, code="invalid_audio")
