import pytest

from openai_frontend.middleware.request_id import RequestId
from openai_frontend.request_context.context import current_request
from tests.fast.middleware.asgi import call, echo


async def test_new_id():
    first, second = await call(RequestId(echo)), await call(RequestId(echo))

    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


@pytest.mark.parametrize("given", [b"abc-123", b"a" * 128, b"trace/1:2=3+4@5._"])
async def test_client_id_is_kept(given):
    """In the response and in the request's context."""
    seen = []

    async def app(scope, receive, send):
        seen.append(current_request().request_id)
        await echo(scope, receive, send)

    sent = await call(RequestId(app), headers=[(b"x-request-id", given)])

    assert seen == [given.decode()]
    assert given.decode() == sent.headers["x-request-id"]


@pytest.mark.parametrize("given", [b"", b"a" * 129, b"a\nb", b"a b", b"\xff", b"<script>"])
async def test_unsafe_id_is_replaced(given):
    """It could break a log line."""

    sent = await call(RequestId(echo), headers=[(b"x-request-id", given)])

    assert sent.headers["x-request-id"].startswith("req_")


async def test_processing_time():
    """Milliseconds until the response started."""

    sent = await call(RequestId(echo))

    assert 0 <= int(sent.headers["openai-processing-ms"]) < 60_000


async def test_lifespan_has_no_id():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    await call(RequestId(app), scope={"type": "lifespan"})

    assert "state" not in seen[0]
