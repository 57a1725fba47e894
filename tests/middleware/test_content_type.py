import json

import pytest

from openai_frontend.middleware.content_type import ContentType
from tests.middleware.asgi import call, echo

REFUSED = [
    b"text/plain",
    b"text/plain;application/json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"application/octet-stream",
    b"",
]


@pytest.mark.parametrize("given", REFUSED)
async def test_other_types(given):
    """What says that it is no JSON is refused unread, so that a web page cannot send it."""

    sent = await call(ContentType(echo), headers=[(b"content-type", given)], body=[])

    code = json.loads(sent.body)["error"]["code"]
    assert (sent.status, code) == (415, "unsupported_content_type")


READ = [b"application/json", b"application/json; charset=utf-8", b"Application/JSON ;x=y"]


@pytest.mark.parametrize("headers", [[], *([(b"content-type", given)] for given in READ)])
async def test_json(headers):
    """JSON passes, and so does a body that does not say what it is."""

    sent = await call(ContentType(echo), headers=headers, body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")


async def test_requests_without_a_body():
    """The type of what is not there does not matter."""
    headers = [(b"content-type", b"text/plain")]

    sent = await call(ContentType(echo), headers=headers, scope={"method": "GET"})

    assert sent.status == 200
