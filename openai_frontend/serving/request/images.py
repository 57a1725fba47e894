"""The images of a request: from `image_url` parts to inputs that are within the limits.

The base64 text is hashed before anything is decoded, and only the bytes of the header are decoded
here.
"""

from binascii import Error as InvalidBase64
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pybase64

from openai_frontend.errors import InvalidRequest
from openai_frontend.media.image_header import (
    FORMATS,
    Header,
    InvalidHeader,
    Read,
    UnknownFormat,
    read_header,
)
from openai_frontend.media.modalities import ImageInput, ImageSupport
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

MAX_SIDE = 16_384  # pixels
MAX_RATIO = 200  # of the longer side to the shorter
_KNOWN_HEADERS = 4096

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


_URLS = DataURLs(
    what="image",
    example="data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=",
    code="invalid_image_url",
    formats=(*FORMATS, "jpg"),
    unsupported=_UNSUPPORTED,
    unsupported_code="invalid_image_format",
)


class ImageReader(PartReader[ImageInput]):
    """Reads images. One per process: it knows the headers of images that it has seen, and the
    images that clients have named.
    """

    plural = "images"
    urls = _URLS

    def __init__(
        self,
        limits: ImageLimits,
        on_read: Callable[[str, Sequence[ImageInput]], None] | None = None,
        named: NamedMedia | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        """`named`: None for names of images alone."""
        named = named or NamedMedia(limits.max_stored_image_bytes)
        super().__init__(named, on_read, limits.max_image_bytes, fetching)
        self._limits = limits
        self._headers: OrderedDict[str, Header] = OrderedDict()  # by digest

    def most(self, model: Describes) -> int | None:
        return None if model.facts.images is None else self._limits.images_of(model.facts.images)

    def sent(self, each: MediaPart, model: Describes) -> Base64Text | RemoteItem | None:
        value = each.part.get("image_url")
        image_url = value if isinstance(value, dict) else {"url": value}
        url, detail = image_url.get("url"), _detail(image_url)
        support = model.facts.images or ImageSupport()
        _check_detail(detail, f"{each.place}.image_url.detail", support)
        if url is None:
            return None
        param = f"{each.place}.image_url" + (".url" if value is image_url else "")
        return self.at(url, detail, param)

    def stored(self, item: ImageInput, model: Describes) -> ImageInput:
        """With the detail that it was stored with, which another model may not take."""
        _check_detail(item.detail, item.param, model.facts.images or ImageSupport())
        return item

    def items(self, sent: Sequence[Base64Text | ImageInput]) -> tuple[ImageInput, ...]:
        images = tuple(self._input(each) if isinstance(each, Base64Text) else each for each in sent)
        pixels = sum(image.width * image.height for image in images)
        if pixels > self._limits.max_pixels:
            raise _too_large(
                "messages",
                f"its images have {pixels} pixels in all; the limit is {self._limits.max_pixels} "
                "pixels per request",
            )
        return images

    def oversized(self, size: str, param: str) -> InvalidRequest:
        return _too_large(
            param,
            f"the image has {size} bytes; the limit is {self._limits.max_image_bytes} bytes "
            "per image (max_image_bytes)",
        )

    def _input(self, item: Base64Text) -> ImageInput:
        base64 = item.text[item.start :]
        try:
            digest = media_parts.digest(base64)
            header = self._headers.get(digest)
            if header is None:
                header = _header(base64, item.param)
                self._headers[digest] = header
                if len(self._headers) > _KNOWN_HEADERS:
                    self._headers.popitem(last=False)
        except NotBase64:
            raise _URLS.error(item.param, "a value that is not valid base64") from None
        self._check_size(header, item.param)
        return ImageInput(
            base64=base64,
            digest=digest,
            width=header.width,
            height=header.height,
            format=header.format,
            detail=item.option,
            param=item.param,
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


def _detail(image_url: Mapping[str, Any]) -> str:
    return image_url.get("detail") or "auto"


def _check_detail(detail: str, param: str, support: ImageSupport) -> None:
    if detail not in support.details:
        supported = ", ".join(f"'{each}'" for each in support.details)
        message = f"Invalid value: '{detail}'. Supported values with this model are: {supported}."
        raise InvalidRequest(message, param=param, code="unsupported_value")


def _header(base64: str, param: str) -> Header:
    """The header. The whole text is checked, but not decoded. Raises NotBase64."""
    check_base64(base64)
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


def _too_large(param: str, reason: str) -> InvalidRequest:
    message = f"Invalid '{param}': {reason}. Send a smaller image."
    return InvalidRequest(message, param=param, code="image_too_large")
