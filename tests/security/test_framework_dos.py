"""Requests that have brought frameworks down: file ranges, multipart forms, request smuggling,
clients that disconnect from streams (CVE-2025-62727, CVE-2024-47874, CVE-2025-54121,
CVE-2025-43859, CVE-2026-9540).
"""

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from tests.api.routers.mock_gateway import exchange
from tests.cpu_time import budget
from tests.resilience.faults.invariants import no_trace_left
from tests.security.guarded import CHAT, KEY, REQUIRED, Guarded, check_refused

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
def test_ambiguous_framing_never_yields_a_second_request(guarded, name):
    """The server refuses a request with ambiguous framing and never treats the bytes after it as a
    request.
    """
    sent = SMUGGLED[name]

    with socket.create_connection(("127.0.0.1", guarded.process.port), timeout=60) as connection:
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
def test_range_headers_are_ignored(guarded, path, ranges):
    """No response is partial, and even 5,000 ranges cost at most 0.5 s of CPU time."""
    process = psutil.Process(guarded.process.pid)
    before = sum(process.cpu_times()[:2])

    response = guarded.ask(f"GET {path}", b"", f"range: {ranges}")

    assert response.status == 200
    assert "content-range" not in response.headers
    assert sum(process.cpu_times()[:2]) - before < budget(0.5)


FORMS = [
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "multipart/mixed; boundary=" + "x" * 10_000,
    "application/x-www-form-urlencoded",
    "text/plain",
    "application/xml",
]


@pytest.mark.parametrize("kind", FORMS, ids=range(len(FORMS)))
def test_form_bodies_get_415(guarded, kind):
    """The server refuses the content type before it reads the body and parses no form."""
    part = b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\n" + b"x" * 100_000
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{AUTH}"
    sent = f"{head}Content-Type: {kind}\r\nContent-Length: {len(part)}\r\n\r\n".encode() + part

    check_refused(exchange(guarded.process.port, sent), 415)


CLIENTS = 10_000
AT_ONCE = 8
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST
ANSWER = b"data: "  # an answer that has started
STREAMED = json.dumps({**REQUIRED[CHAT], "model": "slow", "max_tokens": 500, "stream": True})
WHOLE = post(f"Content-Length: {len(STREAMED)}", body=STREAMED)
HEAD_END = WHOLE.index(b"\r\n\r\n") + 4
# What a client sends, the bytes it reads up to before it disconnects, and its share of all clients
STAGES: dict[str, tuple[bytes, bytes, int]] = {
    "connected": (b"", b"", 2),
    "half a head": (WHOLE[:40], b"", 2),
    "half a body": (WHOLE[: HEAD_END + 20], b"", 2),
    "asked": (WHOLE, b"", 2),
    "head of the answer": (WHOLE, b"\r\n\r\n", 1),
    "in the middle of a stream": (WHOLE, ANSWER, 1),
}


@pytest.mark.slow
async def test_10_000_disconnected_clients_leave_nothing(guarded_process: Guarded) -> None:
    """This holds for every stage of a request in which a client disconnects."""
    port, headers = guarded_process.process.port, {"authorization": f"Bearer {KEY}"}
    order = [stage for stage, (_, _, share) in STAGES.items() for _ in range(share)]
    assert guarded_process.answers(stream=True)

    async with no_trace_left(guarded_process.process, deadline_s=60, headers=headers):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stages = [order[number % len(order)] for number in range(CLIENTS)]
            seen = list(pool.map(partial(leave, port), stages))
        begun = [answer for stage, answer in zip(stages, seen, strict=True) if STAGES[stage][1]]
        assert len(begun) == CLIENTS / 5
        assert {answer[:15] for answer in begun} == {b"HTTP/1.1 200 OK"}

    assert guarded_process.answers()


def leave(port: int, stage: str) -> bytes:
    """Connect, send, read, and reset the connection; return what was read."""
    sent, until, _ = STAGES[stage]
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.sendall(sent)
        while until not in answer and (read := connection.recv(65536)):
            answer += read
    return answer
