"""A response whose body lies in several pieces of memory, none of which is copied together."""

from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Pieces(Response):
    """One body with a length; each piece is written by itself."""

    media_type = "application/octet-stream"

    def __init__(self, pieces: Sequence[bytes | memoryview], headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._pieces = [memoryview(piece).cast("B") for piece in pieces]
        length = sum(piece.nbytes for piece in self._pieces)
        self.init_headers({**headers, "content-length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
