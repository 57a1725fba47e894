import asyncio
import json

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import InvalidRequest
from openai_frontend.middleware.error_responses import ErrorResponses
from openai_frontend.middleware.request_id import RequestId
from tests.fast.middleware.asgi import call, echo


def failing(error: BaseException) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return ErrorResponses(app)


ERRORS = [
    (InvalidRequest("bad", param="n"), 400, "bad"),
    (ValueError("secret"), 500, "The server had an error while processing your request."),
    (asyncio.CancelledError(), 503, "The server is shutting down."),
]


@pytest.mark.parametrize(("error", "status", "message"), ERRORS)
async def test_exception_becomes_a_response(error, status, message):
    """In OpenAI's envelope."""

    sent = await call(failing(error))

    assert (status, message) == (sent.status, json.loads(sent.body)["error"]["message"])
    assert sent.headers["content-type"] == "application/json"


async def test_unexpected_exception_is_logged(caplog):
    """With its traceback and the request id."""

    await call(failing(ValueError("secret")))

    assert "req_1" in caplog.text
    assert "ValueError: secret" in caplog.text


async def test_started_response_is_not_answered_again():
    """The server closes the connection."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  the same that the application raised
        await call(RequestId(ErrorResponses(app)))  # which notes the start


async def test_success_passes_unchanged():
    sent = await call(ErrorResponses(echo), body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")
