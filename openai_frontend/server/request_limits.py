"""Counts what comes of a request before it is held, by its limits. Holds nothing of it, and knows
no connection.
"""

from typing import NoReturn

from openai_frontend.server.protocol_limits import (
    MAX_HEADERS,
    MAX_REQUEST_LINE_BYTES,
    ProtocolLimits,
)
from openai_frontend.serving.error_reply import ErrorReply, http_error

MALFORMED = http_error(400, "Invalid HTTP request received.", "invalid_http")

_TOO_MANY_HEADERS = http_error(
    431, f"The request has more than {MAX_HEADERS} headers.", "request_headers_too_large"
)

_CODED = b"transfer-encoding"
_VERSIONS = ("1.1", "1.0")  # the parser also takes 0.9, which has no headers, and 2.0


class RequestRefused(Exception):
    """It is `RequestLimits.refusal`: a parser that this stops has an error of its own."""


class RequestLimits:
    """The requests of a connection, one after the other, as a parser tells of their parts.

    What it is told of raises RequestRefused where that is too much.
    """

    def __init__(self, limits: ProtocolLimits) -> None:
        self.refusal: ErrorReply | None = None  # None: what a parser stops at is malformed
        self.begin(limits)

    def begin(self, limits: ProtocolLimits) -> None:
        """A request, and the limits of now."""
        self._limits = limits
        self._head_bytes = 0  # of what the parser has told, and of what follows a body
        self._untold_bytes = 0  # of what it still holds, in whole reads
        self._chunks = 0
        self._is_coded = False

    def url(self, url: bytes) -> None:
        """A piece of the address."""
        self._head_bytes += len(url)
        limit = min(self._limits.max_header_bytes, MAX_REQUEST_LINE_BYTES)
        if self._head_bytes > limit:
            message = f"The URL of the request is longer than {limit} bytes."
            self._refuse(http_error(414, message, "request_url_too_long"))

    def header(self, name: bytes, value: bytes, *, before: int) -> None:
        """One more, or a line behind a body; `before` are held already."""
        self._head_bytes += len(name) + len(value)
        if before >= MAX_HEADERS:
            self._refuse(_TOO_MANY_HEADERS)
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse_large_head()
        if len(name) == len(_CODED) and name.lower() == _CODED:
            self._check_coding(value)

    def version(self, version: str) -> None:
        """Of HTTP, as the request claims it."""
        if version not in _VERSIONS:
            self._refuse(MALFORMED)

    def chunk(self) -> None:
        """One more piece of a body."""
        self._chunks += 1
        if self._chunks > self._limits.max_body_chunks:
            message = f"The request body has more than {self._limits.max_body_chunks} chunks."
            self._refuse(http_error(413, message, "request_too_large"))

    def untold(self, length: int) -> None:
        """Bytes of a head that the parser has read and not told of yet."""
        self._untold_bytes += length
        if self._untold_bytes > self._limits.max_header_bytes:
            self._refuse_large_head()

    def _check_coding(self, value: bytes) -> None:
        """Nothing but "chunked", once: the parser also takes `gzip, chunked`, and two headers, of
        which a proxy in front may heed the other one.
        """
        if self._is_coded or value.strip().lower() != b"chunked":
            self._refuse(MALFORMED)
        self._is_coded = True

    def _refuse_large_head(self) -> NoReturn:
        limit = self._limits.max_header_bytes
        message = f"The request headers are larger than {limit} bytes (--max-header-bytes)."
        self._refuse(http_error(431, message, "request_headers_too_large"))

    def _refuse(self, failure: ErrorReply) -> NoReturn:
        self.refusal = failure
        raise RequestRefused
