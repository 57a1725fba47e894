"""The images of a request: from `image_url` parts to inputs that are within the limits.

The base64 text is hashed before anything is decoded, and only the bytes of the header are decoded
here. Nothing is ever fetched.
"""

import asyncio
import hashlib
import re
from binascii import Error as InvalidBase64
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pybase64

from openai_frontend.errors import InvalidRequest
from openai_frontend.image_header import (
    FORMATS,
    Header,
    InvalidHeader,
    Read,
    UnknownFormat,
    read_header,
)
from openai_frontend.modalities import ImageInput, ImageSupport
from openai_frontend.serving.request.image_uuids import NamedImages
from schemas import models as schemas

MAX_SIDE = 16_384  # pixels
MAX_RATIO = 200  # of the longer side to the shorter
MAX_COPIED_BYTES = 64 * 1024 * 1024  # base64 of all choices of a request
_HEAD = 256  # characters, in which a data URL's comma must come
_STEP = 256 * 1024  # characters: hashing and checking them hold the GIL for 0.3 ms
_AT_ONCE = 128 * 1024  # characters of all images; more are hashed in a thread
_KNOWN_HEADERS = 4096

_NOT_BASE64 = bytes(range(128)).translate(
    None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)
_BASE64 = bytes(each for each in range(128) if each not in _NOT_BASE64)
_MIME = re.compile(r"[a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64}")
_EXAMPLE = (
    "Expected a base64-encoded data URL with an image MIME type "
    "(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=')"
)
_UNSUPPORTED = (
    "You uploaded an unsupported image. Please make sure your image has of one the following "
    f"formats: {list(FORMATS)}."  # OpenAI's words
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """The server's limits on images. A model may take fewer per request."""

    max_images: int = 16  # per request
    max_image_bytes: int = 20 * 1024 * 1024  # of one image, decoded from base64
    max_image_pixels: int = 25_000_000  # of one image
    max_pixels: int = 100_000_000  # of all images of a request
    max_stored_image_bytes: int = 64 * 1024 * 1024  # that `uuid`s name, in base64; 0: none

    def images_of(self, support: ImageSupport) -> int:
        """The images that a request to the model may have."""
        own = support.max_per_request
        return self.max_images if own is None else min(own, self.max_images)

    def of_model(self, support: ImageSupport) -> schemas.ImageLimits:
        """For GET /v1/models."""
        return schemas.ImageLimits(
            formats=list(FORMATS),
            detail=list(support.details),
            max_images=self.images_of(support),
            max_image_bytes=self.max_image_bytes,
            max_image_pixels=self.max_image_pixels,
            max_pixels=self.max_pixels,
            max_tokens_per_image=support.max_tokens_per_image,
        )


class ImagePart(NamedTuple):
    """An `image_url` part as it was sent, and its path, such as `messages[0].content[1]`."""

    part: Mapping[str, Any]
    place: str


class ImageModel(Protocol):
    """What a model must state to get images."""

    @property
    def images(self) -> ImageSupport | None:
        """None if the model takes no images."""

    @property
    def tenant(self) -> str:
        """The caller on whose behalf it is used; the same for all callers without a key."""

    @property
    def model_name(self) -> str:
        """Its name in Triton."""


# Told of the images of each request, with the model's name in Triton
ImageObserver = Callable[[str, Sequence[ImageInput]], None]


class _DataURL(NamedTuple):
    """An image with data: its base64 text starts at `start` of `url`."""

    url: str
    start: int
    detail: str
    param: str


class ImageReader:
    """Reads images. One per process: it knows the headers of images that it has seen, and the
    images that clients have named.
    """

    def __init__(self, limits: ImageLimits, on_read: ImageObserver | None = None) -> None:
        self._limits = limits
        self._on_read = on_read
        self._headers: OrderedDict[str, Header] = OrderedDict()  # by digest
        self._named = NamedImages(limits.max_stored_image_bytes)

    async def read(self, parts: Sequence[ImagePart], model: ImageModel) -> tuple[ImageInput, ...]:
        """The images in the order of the parts. Raises InvalidRequest for the first that is invalid
        or beyond a limit.
        """
        support = model.images
        if support is None:
            raise unsupported_images(parts[0])
        self._check_count(len(parts), support)
        sent = [self._sent(each, support, model.tenant) for each in parts]
        characters = sum(len(each.url) for each in sent if isinstance(each, _DataURL))
        if characters <= _AT_ONCE:
            images = self._inputs(sent)
        else:
            images = await asyncio.to_thread(self._inputs, sent)
        for each, image in zip(parts, images, strict=True):
            self._bind(each, image, model.tenant)
        if self._on_read is not None:
            self._on_read(model.model_name, images)
        return images

    def check_choices(self, images: Sequence[ImageInput], n: int) -> None:
        """Each choice is a request of its own, with copies of the images."""
        size = n * sum(len(image.base64) for image in images)
        if n > 1 and size > MAX_COPIED_BYTES:
            message = (
                f"Invalid 'n': {n} choices with their images are {size} bytes; the limit is "
                f"{MAX_COPIED_BYTES} bytes per request. Request fewer choices."
            )
            raise InvalidRequest(message, param="n", code="integer_above_max_value")

    def _check_count(self, count: int, support: ImageSupport) -> None:
        most = self._limits.images_of(support)
        if count > most:
            message = (
                f"Invalid 'messages': too many images. Expected at most {most} images per request "
                f"with this model, but got {count}. Send fewer."
            )
            raise InvalidRequest(message, param="messages", code="array_above_max_length")

    def _sent(self, each: ImagePart, support: ImageSupport, tenant: str) -> _DataURL | ImageInput:
        """Where the data is; for a `uuid` alone, the image that it names."""
        given, uuid = each.part.get("image_url"), _uuid(each)
        image_url = given if isinstance(given, dict) else {"url": given}
        url, detail = image_url.get("url"), image_url.get("detail") or "auto"
        _check_detail(detail, f"{each.place}.image_url.detail", support)
        if url is not None:
            param = (
                f"{each.place}.image_url.url" if given is image_url else f"{each.place}.image_url"
            )
            start = _data_start(url, param)
            self._check_bytes((len(url) - start) * 3 // 4, param)
            return _DataURL(url, start, detail, param)
        if uuid is None:
            param = f"{each.place}.image_url"
            message = f"Missing required parameter: '{param}'."
            raise InvalidRequest(message, param=param, code="missing_required_parameter")
        return self._named.get(tenant, uuid, each.place, detail)

    def _check_bytes(self, size: int, param: str) -> None:
        if size > self._limits.max_image_bytes:
            raise _too_large(
                param,
                f"the image has {size} bytes; the limit is {self._limits.max_image_bytes} bytes "
                "per image (max_image_bytes)",
            )

    def _inputs(self, sent: Sequence[_DataURL | ImageInput]) -> tuple[ImageInput, ...]:
        """Blocks for 1 ms per MB that is new. May run in a thread."""
        images = tuple(self._input(each) if isinstance(each, _DataURL) else each for each in sent)
        pixels = sum(image.width * image.height for image in images)
        if pixels > self._limits.max_pixels:
            raise _too_large(
                "messages",
                f"its images have {pixels} pixels in all; the limit is {self._limits.max_pixels} "
                "pixels per request (max_pixels)",
            )
        return images

    def _input(self, sent: _DataURL) -> ImageInput:
        base64 = sent.url[sent.start :]
        digest = _digest(base64, sent.param)
        header = self._headers.get(digest)
        if header is None:
            header = _header(base64, sent.param)
            self._headers[digest] = header
            if len(self._headers) > _KNOWN_HEADERS:
                self._headers.popitem(last=False)
        self._check_size(header, sent.param)
        return ImageInput(
            base64=base64,
            digest=digest,
            width=header.width,
            height=header.height,
            format=header.format,
            detail=sent.detail,
            param=sent.param,
        )

    def _check_size(self, header: Header, param: str) -> None:
        width, height = header.width, header.height
        if max(width, height) > MAX_SIDE:
            raise _too_large(
                param,
                f"the image has {width} x {height} pixels; the limit is {MAX_SIDE} pixels per side",
            )
        if max(width, height) > MAX_RATIO * min(width, height):
            raise _too_large(
                param,
                f"the image has {width} x {height} pixels; one side may be at most {MAX_RATIO} "
                "times the other",
            )
        if width * height > self._limits.max_image_pixels:
            raise _too_large(
                param,
                f"the image has {width} x {height} pixels, which is {width * height}; the limit is "
                f"{self._limits.max_image_pixels} pixels per image (max_image_pixels)",
            )

    def _bind(self, each: ImagePart, image: ImageInput, tenant: str) -> None:
        uuid = _uuid(each)
        if uuid is not None:
            self._named.bind(tenant, uuid, image, f"{each.place}.uuid")


def unsupported_images(first: ImagePart) -> InvalidRequest:
    """For a model that takes only text, in OpenAI's words."""
    message = "Invalid content type. image_url is only supported by certain models."
    return InvalidRequest(message, param=f"{first.place}.type", code="unsupported_value")


def _uuid(each: ImagePart) -> str | None:
    uuid: str | None = each.part.get("uuid")
    return uuid or None


def _check_detail(detail: str, param: str, support: ImageSupport) -> None:
    if detail not in support.details:
        supported = ", ".join(f"'{each}'" for each in support.details)
        message = f"Invalid value: '{detail}'. Supported values with this model are: {supported}."
        raise InvalidRequest(message, param=param, code="unsupported_value")


def _data_start(url: str, param: str) -> int:
    """Where the base64 text of a data URL begins. Raises InvalidRequest for any other URL."""
    head, comma, _ = url[:_HEAD].partition(",")
    scheme = head[:8].lower()
    if scheme.startswith(("http:", "https:")):
        raise _invalid_url(
            param,
            "This server fetches nothing. Send the image itself, as a base64-encoded data URL "
            "(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=').",
        )
    mime, *options = head[5:].lower().split(";")
    if not scheme.startswith("data:") or not comma:
        raise _invalid_url(param, f"{_EXAMPLE}, but got a value that is not a data URL.")
    if not options or options[-1].strip() != "base64":
        raise _invalid_url(param, f"{_EXAMPLE}, but got a data URL without ';base64'.")
    if not mime.startswith("image/"):
        shown = f" '{mime}'" if _MIME.fullmatch(mime) else ""
        raise _invalid_url(param, f"{_EXAMPLE}, but got unsupported MIME type{shown}.")
    if mime.removeprefix("image/") not in (*FORMATS, "jpg"):
        raise InvalidRequest(_UNSUPPORTED, param=param, code="invalid_image_format")
    if len(url) == len(head) + 1:
        raise _invalid_url(param, f"{_EXAMPLE}, but got empty base64-encoded bytes.")
    return len(head) + 1


def _digest(base64: str, param: str) -> str:
    """SHA-256, which releases the GIL for long pieces."""
    digest = hashlib.sha256()
    for piece in _pieces(base64, param):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(base64: str, param: str) -> Iterator[bytes]:
    if not base64.isascii():
        raise _not_base64(param)
    for start in range(0, len(base64), _STEP):
        yield base64[start : start + _STEP].encode("ascii")


def _header(base64: str, param: str) -> Header:
    """The header. The whole text is checked, but not decoded: decoders that skip a wrong character
    would see another header.
    """
    body = base64.rstrip("=")
    if len(base64) % 4 or len(base64) - len(body) > 2:
        raise _not_base64(param)
    for piece in _pieces(body, param):
        if piece.translate(None, _BASE64):
            raise _not_base64(param)
    try:
        return read_header(_decoding(base64))
    except UnknownFormat:
        raise InvalidRequest(_UNSUPPORTED, param=param, code="invalid_image_format") from None
    except InvalidHeader as error:
        message = f"Invalid '{param}': the image cannot be read: {error}."
        raise InvalidRequest(message, param=param, code="image_parse_error") from None


def _decoding(base64: str) -> Read:
    """Reads bytes by decoding the characters around them: 1 us for a few."""

    def read(start: int, length: int) -> bytes:
        skipped = start % 3
        first, last = start // 3 * 4, -(-(start + length) // 3) * 4
        try:
            decoded = pybase64.b64decode(base64[first:last])
        except InvalidBase64:  # the padding of the last piece is checked, so it cannot be
            return b""
        return decoded[skipped : skipped + length]

    return read


def _not_base64(param: str) -> InvalidRequest:
    return _invalid_url(param, f"{_EXAMPLE}, but got a value that is not valid base64.")


def _invalid_url(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}'. {reason}", param=param, code="invalid_image_url")


def _too_large(param: str, reason: str) -> InvalidRequest:
    message = f"Invalid '{param}': {reason}. Send a smaller image."
    return InvalidRequest(message, param=param, code="image_too_large")
