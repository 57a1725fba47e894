"""The media of a request: reads the tensors `image`, `audio_file`, `audio` and `media_info`.

Nothing is decoded.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from openai_frontend.json_limits import TooManyParts, check_json_size
from openai_frontend.media.audio import FORMATS as AUDIO_FORMATS
from openai_frontend.media.modalities import (
    ENGINE_LIMITS,
    AudioFile,
    AudioInput,
    ImageInput,
    TranscriptionSupport,
    salted,
)

DETAILS = ("auto", "low", "high", "original")
FORMATS = ("png", "jpeg", "gif", "webp")
_INFO_BYTES = 64 * 1024  # of `media_info`; an image takes 150
_DIGEST_CHARACTERS = 64
_SAMPLE_BYTES = 4


class Strings(Protocol):
    """A STRING[-1] input."""

    def item(self) -> Any: ...

    def tolist(self) -> list[Any]: ...


def base64_digest(base64: str, cache_salt: str | None = None) -> str:
    """Return the key of an image or an audio file: hex SHA-256 of its base64 text. With a cache
    salt, hex SHA-256 of `SALT:DIGEST`, so that requests with different salts share nothing.
    """
    return salted(hashlib.sha256(base64.encode()).hexdigest(), cache_salt)


def audio_digest(samples: Any, cache_salt: str | None = None) -> str:
    """Return the key of audio: as of an image, from the bytes of its samples."""
    return salted(hashlib.sha256(samples).hexdigest(), cache_salt)


def read_audio(inputs: Mapping[str, Any], cache_salt: str | None) -> AudioInput:
    """Return the tensor `audio`, with the digest in `media_info` or its own.

    Raises ValueError, naming the tensor.
    """
    samples = memoryview(bytes(memoryview(inputs["audio"]).cast("B")))
    if (info := inputs.get("media_info")) is None:
        return AudioInput(samples=samples, digest=audio_digest(samples, cache_salt))
    described = _read_info(info.item())
    if len(described) != 1:
        raise ValueError(f"media_info: {len(described)} items for 1 audio")
    return AudioInput(samples=samples, digest=_digest(described[0], "audio"))


def check_audio(audio: AudioInput | None, support: TranscriptionSupport | None) -> None:
    """Raises ValueError if a model cannot use the request's audio, or needs audio."""
    if support is None:
        if audio is not None:
            raise ValueError("audio: the model does not take audio")
        return
    if audio is None:
        raise ValueError("audio: the model transcribes audio, and the request has none")
    count = audio.samples.nbytes // _SAMPLE_BYTES
    rate, window_s = support.sample_rate, support.window_seconds
    if not 0 < count <= rate * window_s:
        raise ValueError(
            f"audio: {count:,} samples; the model takes 1 to {rate * window_s:,.0f}"
            f" ({window_s:g} s at {rate} Hz)"
        )


def read_images(inputs: Mapping[str, Strings], cache_salt: str | None) -> Sequence[ImageInput]:
    """Return the images of a request, in order.

    Without `media_info`, as from clients of NVIDIA's backend, size and format are 0 and "", which
    means unknown. Raises ValueError, naming the tensor.
    """
    if (tensor := inputs.get("image")) is None:
        return ()
    texts = [_base64(each, "image") for each in tensor.tolist()]
    if (info := inputs.get("media_info")) is None:
        return [
            ImageInput(
                base64=text, digest=base64_digest(text, cache_salt), width=0, height=0, format=""
            )
            for text in texts
        ]
    described = _described(info.item(), "image", len(texts), beside="audio_file" in inputs)
    return [_image(text, each) for text, each in zip(texts, described, strict=True)]


def read_audio_files(inputs: Mapping[str, Strings], cache_salt: str | None) -> Sequence[AudioFile]:
    """Return the audio files of a request, in order. Without `media_info`, their format is "",
    which means unknown. Raises ValueError, naming the tensor.
    """
    texts = [_base64(each, "audio_file") for each in inputs["audio_file"].tolist()]
    if (info := inputs.get("media_info")) is None:
        return [
            AudioFile(
                base64=text,
                digest=base64_digest(text, cache_salt),
                format="",
                max_seconds=ENGINE_LIMITS.max_audio_seconds,
                max_samples=ENGINE_LIMITS.max_audio_samples,
            )
            for text in texts
        ]
    described = _described(info.item(), "audio", len(texts), beside="image" in inputs)
    return [_audio_file(text, each) for text, each in zip(texts, described, strict=True)]


def _base64(data: bytes, tensor: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"{tensor}: not base64") from None


def _described(data: bytes, kind: str, count: int, *, beside: bool) -> list[Any]:
    """The items of `media_info` about one kind; `beside`: whether there is another kind too."""
    described = _read_info(data)
    if beside:
        described = [each for each in described if _kind(each) == kind]
    if len(described) != count:
        what = "images" if kind == "image" else "audio files"
        raise ValueError(f"media_info: {len(described)} items for {count} {what}")
    return described


def _kind(described: Any) -> Any:
    return described.get("kind") if isinstance(described, dict) else None


def _audio_file(base64: str, described: Any) -> AudioFile:
    digest = _digest(described, "audio")
    format, limits = described.get("format"), []
    if format not in AUDIO_FORMATS:
        raise ValueError(f"media_info: format must be one of {', '.join(AUDIO_FORMATS)}")
    for name in ("max_seconds", "max_samples"):
        value = described.get(name)
        if not (type(value) in (int, float) and value > 0):
            raise ValueError(f"media_info: {name} must be a positive number")
        limits.append(value)
    return AudioFile(
        base64=base64,
        digest=digest,
        format=format,
        max_seconds=min(limits[0], ENGINE_LIMITS.max_audio_seconds),
        max_samples=int(min(limits[1], ENGINE_LIMITS.max_audio_samples)),
    )


def _read_info(data: bytes) -> list[Any]:
    if len(data) > _INFO_BYTES:
        raise ValueError(f"media_info: it has {len(data)} bytes; the limit is {_INFO_BYTES}")
    try:
        check_json_size(data)
        described = orjson.loads(data)
    except (TooManyParts, orjson.JSONDecodeError) as error:
        raise ValueError(f"media_info: not JSON: {error}") from None
    if not isinstance(described, list):
        raise ValueError("media_info: not a JSON array")
    return described


def _image(base64: str, described: Any) -> ImageInput:
    digest = _digest(described, "image")
    detail, format = described.get("detail"), described.get("format")
    if detail not in DETAILS or format not in FORMATS:
        raise ValueError(
            f"media_info: detail must be one of {', '.join(DETAILS)},"
            f" format one of {', '.join(FORMATS)}"
        )
    width, height = described.get("width"), described.get("height")
    if not (type(width) is int and type(height) is int and width > 0 and height > 0):
        raise ValueError("media_info: width and height must be positive integers")
    if width * height > (most := ENGINE_LIMITS.max_image_pixels):
        raise ValueError(
            f"image: {width} x {height} pixels; the limit is {most} in total (max_image_pixels)"
        )
    return ImageInput(
        base64=base64, digest=digest, width=width, height=height, format=format, detail=detail
    )


def _digest(described: Any, kind: str) -> str:
    if not isinstance(described, dict) or described.get("kind") != kind:
        raise ValueError(f"media_info: each item must be an object with kind '{kind}'")
    digest = described.get("digest")
    if not (isinstance(digest, str) and len(digest) == _DIGEST_CHARACTERS):
        raise ValueError(f"media_info: digest must have {_DIGEST_CHARACTERS} characters")
    return digest
