"""The server counts request bodies as they arrive and never decompresses them (Triton's
CVE-2025-23310, CVE-2025-23311, CVE-2025-33201, #8570, #8770).

tests/fast/middleware/test_request_body.py tests the counting, and
tests/security/test_framework_dos.py tests wrong Content-Length headers.
"""

import gzip
import socket
import zlib

import psutil
import pytest

from tests.api.routers.mock_gateway import RawResponse
from tests.cpu_time import budget
from tests.resilience.faults.invariants import no_trace_left
from tests.security.guarded import CHAT, KEY, MAX_BODY_BYTES, Guarded, check_refused

HEAD = (
    f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    f"Content-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n"
).encode()
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def exchanged(guarded: Guarded, *pieces: bytes) -> RawResponse:
    """Return the first answer."""
    return RawResponse.of(guarded.flood(pieces))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize("length", [MAX_BODY_BYTES + 1, 10**8, 10**12, 2**63 - 1])
def test_content_length_over_the_limit_gets_413(guarded, length):
    """The header alone is enough, also with Expect: 100-continue; the server allocates nothing."""
    head = HEAD + f"Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n".encode()

    check_refused(exchanged(guarded, head), 413)


def test_chunks_over_the_limit_get_413(guarded):
    """A body without Content-Length is refused as soon as it passes the limit."""
    piece = chunk(b" " * 65_536)

    check_refused(exchanged(guarded, CHUNKED, *[piece] * 64, b"0\r\n\r\n"), 413)


def test_one_chunk_over_the_limit_gets_413(guarded):
    check_refused(exchanged(guarded, CHUNKED, b"FFFFFFFF\r\n", *[b" " * 65_536] * 96), 413)


@pytest.mark.parametrize("extension", [b"", b";a=b"], ids=["bare", "extended"])
def test_chunks_of_one_byte_cost_linear_time(guarded, extension):
    """200,000 chunks of one byte take at most 2 s of CPU time and no memory each."""
    process = psutil.Process(guarded.process.pid)
    one = b"1" + extension + b"\r\n \r\n"
    before = sum(process.cpu_times()[:2])

    response = exchanged(guarded, CHUNKED, *[one * 20_000] * 10, b"0\r\n\r\n")

    check_refused(response, 400, 413)
    assert sum(process.cpu_times()[:2]) - before < budget(2.0)


def packed() -> dict[str, bytes]:
    plain = b" " * 50_000_000
    deflated = zlib.compress(plain)
    return {"gzip": gzip.compress(plain), "deflate": deflated, "br": deflated, "zstd": deflated,
            "gzip, gzip": gzip.compress(gzip.compress(plain)), "x-gzip": b"\x1f\x8b"}  # fmt: skip


@pytest.fixture(scope="module")
def bombs():
    return packed()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-gzip"])
def test_a_compressed_body_gets_415(guarded, bombs, coding):
    """Nothing is decompressed."""
    body = bombs[coding]
    head = HEAD + f"Content-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    check_refused(exchanged(guarded, head + body), 415)


def test_a_compressed_transfer_encoding_is_refused(guarded):
    head = HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"

    response = exchanged(guarded, head + chunk(gzip.compress(b"{}")) + b"0\r\n\r\n")

    check_refused(response, 400, 415, 501)


@pytest.mark.slow
async def test_clients_that_disconnect_within_a_body_leave_nothing(guarded_process):
    """This holds for chunked bodies and for bodies with a Content-Length."""
    headers = {"authorization": f"Bearer {KEY}"}
    assert guarded_process.answers()

    async with no_trace_left(guarded_process.process, deadline_s=60, headers=headers):
        for begun in (
            CHUNKED + b"5\r\nabc",
            CHUNKED + b"FF",
            HEAD + b"Content-Length: 900\r\n\r\n{",
        ):
            for _ in range(50):
                address = ("127.0.0.1", guarded_process.process.port)
                with socket.create_connection(address) as connection:
                    connection.sendall(begun)


def test_unfinished_bodies_use_memory_only_for_received_bytes(guarded):
    """Forty bodies that announce 1 MB and stop at half use at most 1 MB each."""
    sent = HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 500_000

    assert guarded.grown_by(40, sent) < 40 * 2 * 500_000
