"""Refuses HTTP/2, which gRPC clients speak without asking (RFC 9113, section 3.3).

The refusal is an HTTP/1.1 response: after an HTTP/2 frame, gRPC clients connect again without a
pause, several hundred times a second.
"""

import logging

from openai_frontend.serving.error_reply import http_error

logger = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n"
REFUSAL = http_error(
    400,
    "HTTP/2 and gRPC are not served on this port. Use HTTP/1.1, or gRPC on --grpc-port.",
    "invalid_http",
)

_LOG_EVERY_S = 60.0


class Http2Log:
    """Warns once a minute: a gRPC client connects again and again."""

    def __init__(self) -> None:
        self._next_s = float("-inf")

    def warn(self, peer: str, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOG_EVERY_S
        logger.warning(
            "HTTP/2 connection refused, client=%s: this port serves HTTP/1.1; --grpc-port serves"
            " gRPC (docs/kserve.md)",
            peer,
        )
