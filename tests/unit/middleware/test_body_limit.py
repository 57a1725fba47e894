import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from openai_frontend.errors import RequestTooLarge, ServerOverloaded
from openai_frontend.middleware import request_body
from openai_frontend.middleware.request_body import BodyLimit, BodyMemoryBudget
from tests.unit.middleware.asgi import call, echo

LIMITED = BodyLimit(echo, max_body_bytes=10, budget=BodyMemoryBudget(1000))


@pytest.mark.parametrize("body", [[b""], [b"x" * 10], [b"xxxxx", b"xxxxx"]])
async def test_body_within_the_limit(body):
    """In one part or several."""

    sent = await call(LIMITED, body=body)

    assert b"".join(body) == sent.body


@pytest.mark.parametrize("body", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x"] * 11])
async def test_body_over_the_limit(body):
    """Bytes are counted as they arrive, whatever Content-Length says."""

    with pytest.raises(RequestTooLarge):
        await call(LIMITED, headers=[(b"content-length", b"3")], body=body)


async def test_declared_length_over_the_limit():
    """It is rejected before the body arrives."""

    with pytest.raises(RequestTooLarge):
        await call(LIMITED, headers=[(b"content-length", b"11")], body=[b""])


async def read_of(pieces: list[bytes], headers: list[tuple[bytes, bytes]]) -> int:
    """The number of parts that were read before the rejection."""
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        await LIMITED(scope, receive, send)

    with pytest.raises(RequestTooLarge):
        await call(app, headers=headers)
    return len(pieces) - len(left)


REST = [
    ([b"x" * 11, b"y"], [], 2),
    ([b"x" * 10] * 20, [], 6),
    ([b"x" * 10] * 4, [(b"content-length", b"40")], 4),
    ([b"x" * 10] * 4, [(b"content-length", b"40"), (b"expect", b"100-continue")], 0),
]


@pytest.mark.parametrize(("pieces", "headers", "expected"), REST)
async def test_rest_of_the_body_is_dropped(pieces, headers, expected):
    """So that the client reads the response, but only up to a size."""
    assert expected == await read_of(pieces, headers)


async def test_stalled_body(monkeypatch):
    """A client that stops sending does not delay its response for long."""
    monkeypatch.setattr(request_body, "DROP_TIMEOUT_S", 0.01)
    pieces = [b"x" * 11]

    async def receive() -> Message:
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(), "more_body": True}

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        await LIMITED(scope, receive, send)

    with pytest.raises(RequestTooLarge):
        await call(app)


async def test_memory_budget():
    """One more body than fits is rejected; each request returns its bytes at its end."""
    go_on, held = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        held.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limited = BodyLimit(slow, max_body_bytes=10, budget=BodyMemoryBudget(15))
    first = asyncio.create_task(call(limited, body=[b"x" * 10]))
    await held.wait()

    with pytest.raises(ServerOverloaded):
        await call(limited, body=[b"x" * 6])
    second = asyncio.create_task(call(limited, body=[b"x" * 5]))
    go_on.set()

    assert [(await each).status for each in (first, second)] == [200, 200]
    assert (await call(limited, body=[b"x" * 10])).status == 200


async def test_rejected_body_returns_its_bytes():
    limited = BodyLimit(echo, max_body_bytes=10, budget=BodyMemoryBudget(15))

    for _ in range(3):
        with pytest.raises(RequestTooLarge):
            await call(limited, body=[b"x" * 8, b"x" * 8])

    assert (await call(limited, body=[b"x" * 10])).status == 200
