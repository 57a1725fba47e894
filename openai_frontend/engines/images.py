"""The images of a request: reads the tensors `image` and `media_info`. Nothing is decoded."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from openai_frontend.generation import ImageInput
from openai_frontend.json_limits import TooManyParts, check_json_size

DETAILS = ("auto", "low", "high", "original")
FORMATS = ("png", "jpeg", "gif", "webp")
_INFO_BYTES = 64 * 1024  # of `media_info`; an image takes 150
_DIGEST_CHARACTERS = 64


class Strings(Protocol):
    """A STRING[-1] input."""

    def item(self) -> Any: ...

    def tolist(self) -> list[Any]: ...


def image_digest(base64: str, cache_salt: str | None = None) -> str:
    """Return the key of an image: hex SHA-256 of its base64 text. With a cache salt, hex SHA-256 of
    `SALT:DIGEST`, so that requests with different salts share nothing.
    """
    digest = hashlib.sha256(base64.encode()).hexdigest()
    if cache_salt is None:
        return digest
    return hashlib.sha256(f"{cache_salt}:{digest}".encode()).hexdigest()


def read_images(inputs: Mapping[str, Strings], cache_salt: str | None) -> Sequence[ImageInput]:
    """Return the images of a request, in order.

    Without `media_info`, as from clients of NVIDIA's backend, size and format are 0 and "", which
    means unknown. Raises ValueError, naming the tensor.
    """
    if (tensor := inputs.get("image")) is None:
        return ()
    texts = [_base64(each) for each in tensor.tolist()]
    if (info := inputs.get("media_info")) is None:
        return [
            ImageInput(
                base64=text, digest=image_digest(text, cache_salt), width=0, height=0, format=""
            )
            for text in texts
        ]
    described = _read_info(info.item())
    if len(described) != len(texts):
        raise ValueError(f"media_info: {len(described)} items for {len(texts)} images")
    return [_image(text, each) for text, each in zip(texts, described, strict=True)]


def _base64(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("image: not base64") from None


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
    if not isinstance(described, dict) or described.get("kind") != "image":
        raise ValueError("media_info: each item must be an object with kind 'image'")
    digest, detail, format = (described.get(name) for name in ("digest", "detail", "format"))
    if not (isinstance(digest, str) and len(digest) == _DIGEST_CHARACTERS):
        raise ValueError(f"media_info: digest must have {_DIGEST_CHARACTERS} characters")
    if detail not in DETAILS or format not in FORMATS:
        raise ValueError(
            f"media_info: detail must be one of {', '.join(DETAILS)},"
            f" format one of {', '.join(FORMATS)}"
        )
    width, height = described.get("width"), described.get("height")
    if not (type(width) is int and type(height) is int and width > 0 and height > 0):
        raise ValueError("media_info: width and height must be positive integers")
    return ImageInput(
        base64=base64, digest=digest, width=width, height=height, format=format, detail=detail
    )
