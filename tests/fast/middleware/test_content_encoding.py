"""Request bodies with a Content-Encoding: decompressed below /v2, rejected elsewhere."""

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import Callable

import pytest
from starlette.types import Receive, Scope, Send

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.errors import InvalidRequest, RequestTooLarge
from openai_frontend.middleware.content_encoding import ContentEncoding
from openai_frontend.middleware.request_body import BodyLimit
from tests.fast.middleware.asgi import call, echo

KSERVE = {"path": "/v2/models/m/infer"}
LIMIT = 200_000
BUDGET = MemoryBudget(10 * LIMIT)
APP = ContentEncoding(
    BodyLimit(echo, max_body_bytes=LIMIT, budget=BUDGET), max_body_bytes=LIMIT
)  # fmt: skip
PLAIN = bytes(random.Random(1).choices(b"0123456789,", k=LIMIT))
COMPRESS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"deflate": zlib.compress,
}


async def sent(encoding: bytes, *body: bytes, app=APP, **scope):
    headers = [(b"content-encoding", encoding)] if encoding else []
    return await call(app, headers=headers, body=body or (b"",), scope={**KSERVE, **scope})


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"GZIP", b"deflate"])
async def test_compressed_body_of_openais_api_is_rejected_unread(encoding):
    answer = await call(APP, headers=[(b"content-encoding", encoding)], body=[])

    code = json.loads(answer.body)["error"]["code"]
    assert (answer.status, code) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize("encoding", [b"", b"identity", b" Identity "])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/m/infer"])
async def test_plain_body_passes(encoding, path):
    answer = await sent(encoding, b"x", path=path)

    assert (answer.status, answer.body) == (200, b"x")


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"identity, gzip", b"x-gzip"])
async def test_other_encodings_are_rejected(encoding):
    """Also several ones, in one header or in two."""
    answer = await sent(encoding)
    headers = [(b"content-encoding", b"gzip"), (b"content-encoding", b"deflate")]
    twice = await call(APP, headers=headers, scope=KSERVE)

    assert (answer.status, twice.status) == (415, 415)
    assert "'gzip' or 'deflate'" in json.loads(answer.body)["error"]


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN[:65536], PLAIN[:65537], PLAIN, bytes(LIMIT)])
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"GZip"])
async def test_body_is_decompressed(encoding, plain):
    """Up to the limit, whatever the size of a step."""
    answer = await sent(encoding, COMPRESS[encoding.lower()](plain))

    assert answer.body == plain
    assert BUDGET.used_bytes == 0


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_body_is_decompressed_at_every_split(encoding):
    """It may arrive in any two pieces."""
    data = COMPRESS[encoding](b'{"inputs": []}')

    for at in range(len(data) + 1):
        assert (await sent(encoding, data[:at], data[at:])).body == b'{"inputs": []}'


@pytest.mark.parametrize("encoding", COMPRESS)
async def test_decompressed_bytes_have_the_limit(encoding):
    """A byte more is too large."""
    with pytest.raises(RequestTooLarge):
        await sent(encoding, COMPRESS[encoding](bytes(LIMIT + 1)))

    assert BUDGET.used_bytes == 0


async def test_decompressed_bytes_count_in_the_memory_of_all_bodies():
    """Not the few bytes that the client sends."""
    used = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            used.append(budget.used_bytes)
        await echo(scope, lambda: call_empty(), send)

    async def call_empty():
        return {"type": "http.request", "body": b"", "more_body": False}

    budget = MemoryBudget(10 * LIMIT)
    limited = ContentEncoding(
        BodyLimit(app, max_body_bytes=LIMIT, budget=budget), max_body_bytes=LIMIT
    )
    await sent(b"gzip", gzip.compress(bytes(LIMIT)), app=limited)

    assert used[-1] == 3 * 65536


async def test_bomb_is_decompressed_only_to_the_limit():
    """The rest is neither decompressed nor kept."""
    bomb = gzip.compress(bytes(300_000_000), 6)
    pieces = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted():
            message = await receive()
            pieces.append(len(message["body"]))
            return message

        await BodyLimit(echo, max_body_bytes=LIMIT, budget=BUDGET)(scope, counted, send)

    decompressing = ContentEncoding(app, max_body_bytes=LIMIT)
    with pytest.raises(RequestTooLarge):
        await sent(b"gzip", bomb[:1000], bomb[1000:], app=decompressing)

    assert max(pieces) <= len(bomb)
    assert sum(pieces) <= LIMIT + 65536 + len(bomb)


async def test_compressed_bytes_have_the_limit_too():
    """Deflate's empty blocks produce nothing from any number of bytes."""
    empty = zlib.compressobj(wbits=15)
    begun = empty.compress(b"") + empty.flush(zlib.Z_SYNC_FLUSH)
    block = b"\x00\x00\x00\xff\xff" * 10_000

    with pytest.raises(RequestTooLarge):
        await sent(b"deflate", begun, *[block] * 5)


async def test_event_loop_is_free_between_steps():
    """Another task runs between two steps of 64 KiB."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await sent(b"gzip", gzip.compress(bytes(LIMIT)))
    task.cancel()

    assert turns >= LIMIT // 65536


GOOD = gzip.compress(b"{}")
BROKEN = {
    "not compressed": [b"{}"],
    "ends early": [GOOD[:-1]],
    "header only": [GOOD[:10], b""],
    "wrong checksum": [GOOD[:-8] + b"\0" * 8],
    "data after it": [GOOD + b"x"],
    "a second member": [GOOD, GOOD],
    "deflate": [zlib.compress(b"{}")],
}


@pytest.mark.parametrize("case", BROKEN)
async def test_broken_data(case):
    """It is an invalid request, and nothing of it stays counted."""
    with pytest.raises(InvalidRequest) as error:
        await sent(b"gzip", *BROKEN[case])

    assert error.value.status == 400
    assert BUDGET.used_bytes == 0
