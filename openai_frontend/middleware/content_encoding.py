"""Decompresses request bodies of KServe's protocol in bounded steps, and rejects all others."""

import asyncio
import zlib
from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.errors import InvalidRequest, RequestTooLarge
from openai_frontend.middleware.error_responses import error_form, send_error
from openai_frontend.serving.error_reply import http_error

_REFUSED = http_error(
    415,
    "Unsupported Content-Encoding: send the request body uncompressed.",
    "unsupported_content_encoding",
)
_KSERVE_REFUSED = http_error(
    415,
    "Unsupported Content-Encoding: send the request body uncompressed, or compressed once with "
    "'gzip' or 'deflate'.",
    "unsupported_content_encoding",
)

_WINDOW_BITS: Mapping[bytes, int] = {b"gzip": 31, b"deflate": 15}  # zlib's numbers
_STEP_BYTES = 64 * 1024  # of output: 0.2 ms


class ContentEncoding:
    """Bodies with another Content-Encoding than the identity: a small one may decompress to any
    size, so they must be within the limits of `BodyLimit`, which is inside.

    As Triton, it decompresses `gzip` and `deflate` below /v2. OpenAI's clients do not compress.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests pass."""
        encoding = _encoding(scope) if scope["type"] == "http" else b""
        if not encoding:
            return self._app(scope, receive, send)
        if error_form(scope) != "kserve":
            return send_error(scope, send, _REFUSED)
        if (window_bits := _WINDOW_BITS.get(encoding)) is None:
            return send_error(scope, send, _KSERVE_REFUSED)
        body = _DecompressedBody(receive, window_bits, self._max_body_bytes)
        return self._app(scope, body.receive, send)


def _encoding(scope: Scope) -> bytes:
    """All of the encodings; empty for the identity."""
    found = b""
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            encoding = value.strip().lower()
            if encoding not in (b"identity", b""):
                found = found + b"," + encoding if found else encoding
    return found


class _DecompressedBody:
    """The body of one request, decompressed a step at a time as it is read.

    Beyond the limit, it returns what the client sends, so that dropping the rest costs nothing.
    """

    def __init__(self, receive: Receive, window_bits: int, max_bytes: int) -> None:
        self._receive = receive
        self._stream = zlib.decompressobj(window_bits)
        self._max_bytes = max_bytes
        self._received = 0
        self._produced = 0
        self._has_more_input = True
        self._has_more_output = False  # of the input so far
        self._passes = False

    async def receive(self) -> Message:
        if self._passes:
            return await self._receive()
        if self._has_more_output:
            await asyncio.sleep(0)  # between two steps
            data = self._stream.unconsumed_tail
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            data = message.get("body", b"")
            self._has_more_input = message.get("more_body", False)
            self._count(len(data))
        piece = self._decompress(data)
        has_more = self._has_more_output or self._has_more_input
        if not has_more:
            self._passes = True
            if self._received and not self._stream.eof:
                raise InvalidRequest("The compressed request body is incomplete.")
        return {"type": "http.request", "body": piece, "more_body": has_more}

    def _count(self, length: int) -> None:
        """Empty blocks take any number of bytes."""
        self._received += length
        if self._received > self._max_bytes:
            self._passes = True
            message = f"The compressed request body is larger than {self._max_bytes} bytes."
            raise RequestTooLarge(message)

    def _decompress(self, data: bytes) -> bytes:
        try:
            piece = self._stream.decompress(data, _STEP_BYTES)
        except zlib.error:
            self._passes = True
            message = "The request body is not what its Content-Encoding says."
            raise InvalidRequest(message) from None
        if self._stream.unused_data:
            self._passes = True
            raise InvalidRequest("The request body has data after its compressed part.")
        self._has_more_output = len(piece) == _STEP_BYTES and not self._stream.eof
        self._produced += len(piece)
        self._passes = self._produced > self._max_bytes  # `BodyLimit` raises
        return piece
