"""Responses that violate the SDK's types are detected in every client."""

import json
from typing import Any

import httpx
import httpx2
import pytest

from tests.api.conformance import wire

HEAD = {"id": "x", "created": 1, "model": "m"}
MESSAGE = {"role": "assistant", "content": "a"}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
CHAT: dict[str, Any] = {**HEAD, "object": "chat.completion", "choices": [CHOICE]}
ERROR = {"message": "m", "type": "t", "param": None, "code": None}
VECTOR = {"object": "embedding", "index": 0, "embedding": "AACAPw=="}
USAGE = {"prompt_tokens": 1, "total_tokens": 1}
VECTORS: dict[str, Any] = {"object": "list", "data": [VECTOR], "model": "m", "usage": USAGE}
JSON = "application/json"
EVENTS = "text/event-stream"


def application(body: bytes, *, status: int = 200, kind: str = JSON) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind.encode()), (b"x-request-id", b"req_1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def violations(
    path: str, body: Any, *, http: Any = httpx, status: int = 200, kind: str = JSON
) -> list[str]:
    """The violations of a response; clears them, or they would fail this test as well."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    transport = http.ASGITransport(application(sent, status=status, kind=kind))
    async with http.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post(path, json={"stream": True})
    found = wire.VIOLATIONS.copy()
    wire.VIOLATIONS.clear()
    return found


BROKEN = [
    ("/v1/chat/completions", {**CHAT, "created": "1"}),
    ("/v1/chat/completions", {**CHAT, "choices": [{**CHOICE, "finish_reason": None}]}),
    ("/v1/completions", CHAT),
    ("/v1/embeddings", {**VECTORS, "data": [{**VECTOR, "embedding": "AAA="}]}),
    ("/v1/models", {"data": []}),
    ("/v1/models/a", {"id": "a", "object": "model", "created": 1}),
    ("/v1/chat/completions", json.dumps(CHAT).replace(": 1,", ": NaN,").encode()),
]


@pytest.mark.parametrize(("path", "body"), BROKEN)
@pytest.mark.parametrize("http", [httpx, httpx2])
async def test_invalid_response(path, body, http):
    """A missing field, a wrong type and invalid JSON are violations, with both httpx packages."""
    assert len(await violations(path, body, http=http)) == 1


@pytest.mark.parametrize(
    "body",
    [{"error": "m"}, ERROR, {"error": {**ERROR, "code": 400}}, {"error": {"message": "m"}}],
)
async def test_invalid_error(body):
    """An error without its envelope or one of its four members is a violation."""
    assert len(await violations("/v1/nothing", body, status=400)) == 1


STREAMS = [
    b"data: {}\n\n",
    b"event: x\ndata: {}\n\n",
    b'data: {"error": {}}\n\n',
    b"data: [DONE]\n",
]


@pytest.mark.parametrize("body", STREAMS)
async def test_invalid_stream(body):
    """An event that the SDK's types reject, or that is not one line of data, is a violation."""
    assert await violations("/v1/chat/completions", body, kind=EVENTS) != []


def test_partly_read_response_is_not_a_violation():
    """A client may stop reading early: only a response that was read to its end is judged."""
    body = wire.Exchange(
        httpx.Request("POST", "http://test/v1/chat/completions", json={"stream": True}),
        httpx.Response(200, headers={"content-type": EVENTS, "x-request-id": "req_1"}),
    )

    body.feed(b": comment\n\n")

    assert wire.VIOLATIONS == []
