"""vLLM's `uuid` beside an image: a later request may send it instead of the image's data."""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import replace

from openai_frontend.errors import InvalidRequest
from openai_frontend.modalities import ImageInput

_OVERHEAD_BYTES = 1024  # of an image, however small it is


class NamedImages:
    """The images that clients have named by a `uuid`, least recently used first.

    A name belongs to one caller and to one content: engines never see it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._secret = secrets.token_bytes(32)
        self._images: OrderedDict[bytes, ImageInput] = OrderedDict()

    def get(self, tenant: str, uuid: str, place: str, detail: str) -> ImageInput:
        """Raises InvalidRequest if the caller has not sent this image, or not lately."""
        key = self._key(tenant, uuid)
        image = self._images.get(key)
        if image is None:
            param = f"{place}.uuid"
            message = (
                f"Invalid '{param}': no image with this uuid is stored. Send it with its data."
            )
            raise InvalidRequest(message, param=param, code="invalid_value")
        self._images.move_to_end(key)
        return replace(image, detail=detail, param=f"{place}.uuid")

    def bind(self, tenant: str, uuid: str, image: ImageInput, param: str) -> None:
        """Store the image under the name. Raises InvalidRequest if it names another one."""
        key = self._key(tenant, uuid)
        known = self._images.get(key)
        if known is not None and known.digest != image.digest:
            message = f"Invalid '{param}': this uuid names another image. Use a new uuid."
            raise InvalidRequest(message, param=param, code="invalid_value")
        if known is not None or _size(image) > self._max_bytes:
            return
        self._images[key] = image
        self._bytes += _size(image)
        while self._bytes > self._max_bytes:
            _, evicted = self._images.popitem(last=False)
            self._bytes -= _size(evicted)

    def _key(self, tenant: str, uuid: str) -> bytes:
        return hmac.digest(self._secret, f"{tenant}\0{uuid}".encode(), "sha256")


def _size(image: ImageInput) -> int:
    return _OVERHEAD_BYTES + len(image.base64)
