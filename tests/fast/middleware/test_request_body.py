"""Limits of request bodies: size and memory, Content-Type."""

import asyncio
import contextlib
import json

import pytest
from starlette.types import Message, Receive, Scope, Send

from openai_frontend.admission.memory_budget import MemoryBudget
from openai_frontend.errors import RequestCancelled, RequestTooLarge, ServerOverloaded
from openai_frontend.middleware import request_body
from openai_frontend.middleware.request_body import (
    BodyLimit,
    ContentType,
)
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.routers.request import hold_memory
from tests.fast.middleware.asgi import call, echo

LIMITED = BodyLimit(echo, max_body_bytes=10, budget=MemoryBudget(1000))


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

    limited = BodyLimit(slow, max_body_bytes=10, budget=MemoryBudget(15))
    first = asyncio.create_task(call(limited, body=[b"x" * 10]))
    await held.wait()

    with pytest.raises(ServerOverloaded):
        await call(limited, body=[b"x" * 6])
    second = asyncio.create_task(call(limited, body=[b"x" * 5]))
    go_on.set()

    assert [(await each).status for each in (first, second)] == [200, 200]
    assert (await call(limited, body=[b"x" * 10])).status == 200


async def test_rejected_body_returns_its_bytes():
    limited = BodyLimit(echo, max_body_bytes=10, budget=MemoryBudget(15))

    for _ in range(3):
        with pytest.raises(RequestTooLarge):
            await call(limited, body=[b"x" * 8, b"x" * 8])

    assert (await call(limited, body=[b"x" * 10])).status == 200


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_request_holds_ends_with_it(fails):
    budget = MemoryBudget(100)

    async def holds(scope: Scope, receive: Receive, send: Send) -> None:
        hold_memory(budget).take(100)
        if fails:
            raise RequestCancelled("it left")
        await echo(scope, receive, send)

    for _ in range(2):
        with pytest.raises(RequestCancelled) if fails else contextlib.nullcontext():
            await call(RequestId(holds))

    assert budget.used_bytes == 0


# ---- Content-Type ----

JSON_ONLY = ContentType(echo, route_scope_of=lambda _: "inference")

REJECTED_TYPES = [
    b"text/plain",
    b"text/plain;application/json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"application/octet-stream",
    b"",
]


@pytest.mark.parametrize("given", REJECTED_TYPES)
async def test_other_types_are_rejected_unread(given):
    """So that a web page cannot send such a request."""

    sent = await call(JSON_ONLY, headers=[(b"content-type", given)], body=[])

    code = json.loads(sent.body)["error"]["code"]
    assert (sent.status, code) == (415, "unsupported_content_type")


JSON_TYPES = [b"application/json", b"application/json; charset=utf-8", b"Application/JSON ;x=y"]


@pytest.mark.parametrize("headers", [[], *([(b"content-type", given)] for given in JSON_TYPES)])
async def test_json_passes(headers):
    """And a body without a Content-Type."""

    sent = await call(JSON_ONLY, headers=headers, body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")


async def test_request_without_a_body_passes():
    headers = [(b"content-type", b"text/plain")]

    sent = await call(JSON_ONLY, headers=headers, scope={"method": "GET"})

    assert sent.status == 200


FORM = (b"content-type", b"application/x-www-form-urlencoded")
OCTETS = (b"content-type", b"application/octet-stream")
FROM_A_PAGE = [(b"origin", b"null"), (b"referer", b"http://x/"), (b"sec-fetch-site", b"cross-site")]


@pytest.mark.parametrize("given", [FORM, OCTETS])
async def test_triton_clients_pass(given):
    """On KServe's paths tensors are octets, and `curl -d` declares JSON as a form."""

    sent = await call(JSON_ONLY, headers=[given], body=[b"x"], scope={"path": "/v2/models/m/infer"})

    assert (sent.status, sent.body) == (200, b"x")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        *(("/v2/models/m/generate", [FORM, header]) for header in FROM_A_PAGE),
        ("/v2/models/m/generate", [(b"content-type", b"text/plain")]),
        ("/v2/rerank", [FORM]),
        ("/v2/rerank", [OCTETS]),
    ],
)
async def test_forms_from_pages_are_rejected(path, headers):
    """Also plain text, and either on Cohere's path."""

    sent = await call(JSON_ONLY, headers=headers, body=[], scope={"path": path})

    assert sent.status == 415


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models/m/load", "/v2/models/m/infer"]
)
@pytest.mark.parametrize("header", FROM_A_PAGE)
async def test_untyped_bodies_from_other_pages_are_rejected(path, header):
    """`fetch` sends bytes without a Content-Type, and without CORS preflight."""
    sent = await call(JSON_ONLY, headers=[header], body=[], scope={"path": path})

    assert sent.status == 415


@pytest.mark.parametrize(
    "headers",
    [
        [(b"origin", b"http://localhost:9000"), (b"sec-fetch-site", b"same-origin")],
        [*FROM_A_PAGE, (b"authorization", b"Bearer x")],
    ],
    ids=["/docs", "after CORS preflight"],
)
async def test_untyped_bodies_that_other_pages_cannot_send_pass(headers):
    sent = await call(JSON_ONLY, headers=headers, body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")


async def test_unknown_path_is_404_with_any_type():
    app = ContentType(echo, route_scope_of=lambda _: "nowhere")

    sent = await call(app, headers=[FORM], body=[b"x"], scope={"path": "/api/chat"})

    assert sent.status == 200


async def test_error_names_the_header_to_send():
    """As an option for curl."""
    sent = await call(JSON_ONLY, headers=[FORM], body=[])

    assert b"-H 'Content-Type: application/json'" in sent.body
