import json

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from openai_frontend.auth.api_keys import ApiKeys
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.middleware.authentication import Authentication
from openai_frontend.middleware.headers import cors
from openai_frontend.middleware.request_id import RequestId
from tests.fast.auth.key_files import key
from tests.fast.middleware.asgi import call

PAGE = "https://chat.example.com"


def guarded(origins):
    """As the application has it: the id, the browser's questions, the keys."""
    keys = ApiKeys([key("a")])
    access = Middleware(
        Authentication, authorizer=Authorizer(keys, ()), route_scope_of=lambda _: "models"
    )
    return Starlette(middleware=[Middleware(RequestId), *cors(origins), access])


def asking(origin):
    return [
        (b"origin", origin.encode()),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,content-type,x-stainless-os"),
    ]


async def preflight(app, origin):
    return await call(app, headers=asking(origin), scope={"method": "OPTIONS", "path": "/v1/x"})


@pytest.mark.parametrize("origins", [[PAGE], ["https://other", PAGE], ["*"]])
async def test_preflight_needs_no_key(origins):
    """Credentials are never allowed."""
    sent = await preflight(guarded(origins), PAGE)

    assert sent.status == 200
    assert sent.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "authorization" in sent.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in sent.headers


@pytest.mark.parametrize("origins", [[], [PAGE]], ids=["none allowed", "another allowed"])
async def test_origin_not_allowed(origins, caplog):
    """The error and the log name the setting; the log only once."""
    app = guarded(origins)
    for _ in range(2):
        sent = await preflight(app, "https://evil.example")

    assert (sent.status, sent.headers["content-type"]) == (403, "application/json")
    error = json.loads(sent.body)["error"]
    assert error["code"] == "cors_origin_not_allowed"
    assert "--cors-origins" in error["message"]
    assert caplog.text.count("--cors-origins") == 1
    assert "access-control-allow-origin" not in sent.headers


async def test_options_without_preflight_headers_needs_a_key():
    sent = await call(guarded([]), scope={"method": "OPTIONS", "path": "/v1/x"})

    assert sent.status == 401


async def test_cross_origin_request_needs_a_key():
    """The page can read the error, and the headers that clients use."""
    headers = [(b"origin", PAGE.encode())]
    sent = await call(guarded([PAGE]), headers=headers)

    assert (sent.status, sent.headers["access-control-allow-origin"]) == (401, PAGE)
    assert "x-request-id" in sent.headers["access-control-expose-headers"]


async def test_credentials_are_never_allowed():
    """Requests with cookies get the same response."""
    headers = [(b"origin", PAGE.encode()), (b"cookie", b"a=b"), (b"authorization", b"Bearer a")]
    sent = await call(guarded(["*"]), headers=headers)

    assert sent.status == 404
    assert "access-control-allow-credentials" not in sent.headers
