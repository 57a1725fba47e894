"""The bytes of an HTTP connection.

The application receives the same requests however the network splits the bytes, nothing raises, and
no task remains after the connection closes.
"""

import asyncio
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from openai_frontend.server.http_protocol import limited_protocol
from openai_frontend.server.limits import ProtocolLimits
from scripts.fuzz import loop
from scripts.fuzz.draw import Draw, pieces

_PROTOCOL = limited_protocol(ProtocolLimits())
_TURNS = 12  # iterations of the loop that an answer takes
_REFUSED = ([b"400"], [b"414"], [b"431"])
_LONGEST = 4096  # far below the limit, which is counted differently for complete heads

Seen = list[tuple[str, bytes, list[tuple[bytes, bytes]], bytes]]

WORDS = (
    *("GET / HTTP/1.1\r\n", "POST /v1 HTTP/1.1\r\n", "host: a\r\n", "content-length: ", "\r\n\r\n"),
    *(
        "transfer-encoding: chunked\r\n",
        "transfer-encoding: x, chunked",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
    ),
    *("connection: close\r\n", "connection: upgrade\r\nupgrade: h2c\r\n", "upgrade: websocket\r\n"),
    *(
        "expect: 100-continue\r\n",
        "HTTP/1.0",
        "CONNECT a:1 HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM",
    ),
    *(
        "\x00",
        "\t",
        " :",
        "\n\n",
        ";a=b\r\n",
        "ffffffffffffffff\r\n",
        "content-length: +5\r\n",
        "\r",
    ),
)
SEEDS = (
    b"\x00GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"\x03POST /v1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\n\r\n",
    b"\x07POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\na: b\r\n\r\n",
    b"\x01POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nhello",
    b"\x02POST / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nok",
    b"GPRI * HTTP/2.0\r\n\r\nSM",
    b"\x05POST / HTTP/1.1\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\nhello",
)


class _Network(asyncio.Transport):
    """The other end of the connection, which records what is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def check(data: bytes) -> None:
    draw = Draw(data)
    seed, stream = draw.byte(), draw.rest()[:_LONGEST]

    whole, statuses = loop.run(_connection([stream]))
    cut, cut_statuses = loop.run(_connection(pieces(stream, seed)))

    if statuses[-1:] in _REFUSED or cut_statuses[-1:] in _REFUSED:
        # a refusal also drops the answers in progress
        assert cut_statuses[-1:] == statuses[-1:]
        assert all(one == other for one, other in zip(cut, whole, strict=False))
    else:
        assert cut == whole
        assert cut_statuses == statuses
    for method, path, headers, body in whole:
        names = [name for name, _ in headers]
        framed = names.count(b"content-length") + names.count(b"transfer-encoding")
        assert framed <= 1 or not body, (method, path, headers)


async def _connection(reads: list[bytes]) -> tuple[Seen, list[bytes]]:
    """Return the complete requests that the application received, and the status lines
    sent back.
    """
    seen: Seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen.append((scope["method"], scope["raw_path"], list(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", date_header=False)
    state, network = ServerState(), _Network()
    protocol = _PROTOCOL(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(network)
    for read in reads:
        for _ in range(_TURNS):
            if network.reading:
                break
            await asyncio.sleep(0)
        if network.closed:
            break
        protocol.data_received(read)
        await asyncio.sleep(0)
    quiet, answered = 0, len(network.sent)
    while quiet < _TURNS:  # several requests at once run one after the other
        await asyncio.sleep(0)
        quiet = quiet + 1 if len(network.sent) == answered else 0
        answered = len(network.sent)
    protocol.connection_lost(None)
    async with asyncio.timeout(30):
        await asyncio.gather(*state.tasks)
    lines = network.sent.split(b"HTTP/1.1 ")[1:]
    assert all(line[:3].isdigit() for line in lines)
    return seen, [line[:3] for line in lines]
