"""What frameworks have been stopped by: ranges of files, multipart forms, requests within requests,
streams whose readers leave (CVE-2025-62727, CVE-2024-47874, CVE-2025-54121, CVE-2025-43859,
CVE-2026-9540).
"""

import json
import socket
import struct
import time

import pytest

from tests.faults.invariants import no_trace_left
from tests.routers.mock_gateway import exchange
from tests.security.guarded import CHAT, KEY, REQUIRED, check_refused

AUTH = f"Authorization: Bearer {KEY}\r\n"
BODY = json.dumps(REQUIRED[CHAT])
HIDDEN = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


def post(*headers: str, body: str = BODY) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "Host: a", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n" + AUTH + "\r\n" + body).encode("latin-1")


LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"
SMUGGLED = {
    "length and chunks": post(LENGTH, "Transfer-Encoding: chunked", body=CHUNKED + HIDDEN),
    "chunks and length": post("Transfer-Encoding: chunked", LENGTH, body=CHUNKED + HIDDEN),
    "two lengths": post(LENGTH, "Content-Length: 5", body=BODY + HIDDEN),
    "lengths in one": post("Content-Length: 5, 5", body=BODY + HIDDEN),
    "negative length": post("Content-Length: -1", body=HIDDEN),
    "signed length": post(f"Content-Length: +{len(BODY)}", body=BODY + HIDDEN),
    "hexadecimal length": post("Content-Length: 0x10", body=BODY + HIDDEN),
    "huge length": post("Content-Length: " + "9" * 40, body=BODY),
    "unknown coding": post("Transfer-Encoding: xchunked", body=CHUNKED + HIDDEN),
    "two codings": post("Transfer-Encoding: chunked, identity", body=CHUNKED + HIDDEN),
    "tab before the coding": post("Transfer-Encoding:\x0bchunked", body=CHUNKED + HIDDEN),
    "space before the colon": post("Transfer-Encoding : chunked", body=CHUNKED + HIDDEN),
    "space before the length": post(f"Content-Length : {len(BODY)}", body=BODY + HIDDEN),
    "folded header": post(LENGTH, "X: a\r\n Transfer-Encoding: chunked", body=BODY + HIDDEN),
    "bare newline in a chunk": post("Transfer-Encoding: chunked", body=f"5\n{HIDDEN}"),
    "minus in a chunk": post("Transfer-Encoding: chunked", body=f"-5\r\n{HIDDEN}"),
    "huge chunk": post("Transfer-Encoding: chunked", body="f" * 17 + "\r\nx"),
    "NUL in a name": post("X\0: a", LENGTH),
    "carriage return alone": post("X: a\rTransfer-Encoding: chunked", LENGTH, body=BODY + HIDDEN),
    "old version": post(LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0\x00"),
    "two spaces": post(LENGTH).replace(b" HTTP/1.1", b"  x HTTP/1.1"),
    "a line before": b"\r\n" * 50_000 + post(LENGTH),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_smuggling(guarded, name):
    """What can be read in two ways is not read at all, and what is behind it is no request."""
    sent = SMUGGLED[name]

    with socket.create_connection(("127.0.0.1", guarded.process.port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))

    statuses = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
    assert b"openai_frontend_requests" not in received  # no answer from /metrics
    assert len(statuses) <= 2, received
    assert set(statuses) <= {200, 400, 401, 413}, (name, received[:300])
    if "length" in name or "coding" in name or "chunk" in name:
        assert 200 not in statuses, (name, received[:300])


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/metrics", "/v1/models"])
@pytest.mark.parametrize("ranges", ["bytes=0-0", "bytes=" + "0-," * 5_000, "bytes=-1" * 5_000])
def test_ranges(guarded, path, ranges):
    """A Range header changes nothing: no file is served in parts."""
    begin = time.monotonic()

    response = guarded.ask(f"GET {path}", b"", f"range: {ranges}")

    assert response.status == 200
    assert "content-range" not in response.headers
    assert time.monotonic() - begin < 5


FORMS = [
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "multipart/mixed; boundary=" + "x" * 10_000,
    "application/x-www-form-urlencoded",
    "text/plain",
    "application/xml",
]


@pytest.mark.parametrize("kind", FORMS, ids=range(len(FORMS)))
def test_forms(guarded, kind):
    """No form is parsed: it is refused by its type, before its body is read."""
    part = b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\n" + b"x" * 100_000
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{AUTH}"
    sent = f"{head}Content-Type: {kind}\r\nContent-Length: {len(part)}\r\n\r\n".encode() + part

    check_refused(exchange(guarded.process.port, sent), 415)


CYCLES = 400  # connections that are reset, in each of four stages


async def test_clients_that_leave(guarded_process):
    """Whatever the stage in which they go, nothing of 1,600 clients is left."""
    streamed = json.dumps({**REQUIRED[CHAT], "model": "slow", "max_tokens": 500, "stream": True})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{AUTH}"
    whole = f"{head}Content-Length: {len(streamed)}\r\n\r\n{streamed}".encode()
    stages = [b"", whole[:40], whole[: len(whole) - 20], whole]
    headers = {"authorization": f"Bearer {KEY}"}
    assert guarded_process.answers(stream=True)

    async with no_trace_left(guarded_process.process, deadline_s=20, headers=headers):
        for sent in stages:
            for _ in range(CYCLES):
                reset(guarded_process.process.port, sent)

    assert guarded_process.answers()


def reset(port: int, sent: bytes) -> None:
    """Connects, sends, and goes away without a word."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if sent:
            connection.sendall(sent)
