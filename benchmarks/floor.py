"""The least that a Python server can do for the same bytes: the floor, and the canary.

A uvloop protocol that writes prepared frames, one to each stream a turn. No HTTP beyond what our
own client needs. When its cost moves between two rounds, the machine has moved.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_FIELDS = (
    b'{"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"mock","choices":[{"index":0,'
)
_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


def _frame(choice: bytes) -> bytes:
    event = b"data: " + _FIELDS + choice + b"}]}\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


_NOTHING_YET = b',"logprobs":null,"finish_reason":null'
_OPENING = _frame(b'"delta":{"role":"assistant","content":""}' + _NOTHING_YET)
_TOKEN = _frame(b'"delta":{"content":" token"}' + _NOTHING_YET)
_ENDING = _frame(b'"delta":{},"logprobs":null,"finish_reason":"length"') + (
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class FloorServer:
    """All streams that run, stepped together."""

    def __init__(self) -> None:
        self._remaining: dict[asyncio.Transport, int] = {}
        self._scheduled = False

    def start(self, transport: asyncio.Transport, tokens: int) -> None:
        """A stream of this many tokens."""
        transport.write(_HEAD + _OPENING)
        self._remaining[transport] = tokens
        self._schedule()

    def forget(self, transport: asyncio.Transport) -> None:
        """Its client has gone."""
        self._remaining.pop(transport, None)

    def _schedule(self) -> None:
        if self._remaining and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(0, self._step)

    def _step(self) -> None:
        self._scheduled = False
        for transport, remaining in list(self._remaining.items()):
            if remaining > 1:
                transport.write(_TOKEN)
                self._remaining[transport] = remaining - 1
            else:
                transport.write(_TOKEN + _ENDING)
                del self._remaining[transport]
        self._schedule()


class FloorProtocol(asyncio.Protocol):
    """Takes a request that comes in one piece, as our client sends it."""

    def __init__(self, server: FloorServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type

    def data_received(self, data: bytes) -> None:
        """One request."""
        tokens = _TOKENS.search(data)
        self._server.start(self._transport, int(tokens[1]) if tokens else 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends its stream."""
        self._server.forget(self._transport)


async def serve(port: int) -> None:
    """Until the process ends."""
    floor = FloorServer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FloorProtocol(floor), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
