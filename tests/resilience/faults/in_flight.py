"""Requests on connections from which nothing is read until their answers are needed."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests import audio
from tests.gateway_process import GatewayProcess


@dataclass(frozen=True)
class Request:
    """A request to a route. `large` changes its body so that no socket holds the answer."""

    route: str
    body: Mapping[str, Any]
    large: Mapping[str, Any] = field(default_factory=dict)

    def bytes_of(self, *, large: bool) -> bytes:
        fields = {**self.body, **(self.large if large else {})}
        path = self.route
        if "{model}" in path:
            path = path.format(model=fields.pop("model"), version=1)
        kind, body = "application/json", json.dumps(fields).encode()
        if self.route in ("/v1/audio/transcriptions", "/v1/audio/translations"):
            kind = f"multipart/form-data; boundary={audio.BOUNDARY}"
            body = audio.form(audio.wav(["one"]), *fields.items())
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
        return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


@contextmanager
def asked(
    gateway: GatewayProcess, requests: Mapping[str, Request], *, large: bool = False
) -> Iterator[dict[str, socket.socket]]:
    """A connection for each request, from which nothing is read."""
    with ExitStack() as connections:
        found = {}
        for name, request in requests.items():
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(120)
            connection.connect(("127.0.0.1", gateway.port))
            connection.sendall(request.bytes_of(large=large))
            found[name] = connection
        yield found


def answer_of(connection: socket.socket) -> tuple[int, bool]:
    """Status, and whether the answer is complete and without an error. Reads all of it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    received = b"".join(iter(lambda: connection.recv(2**20), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"\ncontent-length: (\d+)", head)
    complete = body.endswith(b"0\r\n\r\n") if length is None else len(body) == int(length[1])
    return int(head.split()[1]), complete and b'{"error":' not in body


async def answers_of(connections: Mapping[str, socket.socket]) -> dict[str, tuple[int, bool]]:
    return {name: await asyncio.to_thread(answer_of, each) for name, each in connections.items()}


def has_begun(connection: socket.socket) -> bool:
    """Whether some of the answer has arrived."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
