import json

import pytest

from openai_frontend.middleware.request_body import ContentType
from tests.unit.middleware.asgi import call, echo

APP = ContentType(echo, route_scope_of=lambda _: "inference")

REFUSED = [
    b"text/plain",
    b"text/plain;application/json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"application/octet-stream",
    b"",
]


@pytest.mark.parametrize("given", REFUSED)
async def test_other_types_are_rejected_unread(given):
    """So that a web page cannot send such a request."""

    sent = await call(APP, headers=[(b"content-type", given)], body=[])

    code = json.loads(sent.body)["error"]["code"]
    assert (sent.status, code) == (415, "unsupported_content_type")


READ = [b"application/json", b"application/json; charset=utf-8", b"Application/JSON ;x=y"]


@pytest.mark.parametrize("headers", [[], *([(b"content-type", given)] for given in READ)])
async def test_json_passes(headers):
    """And a body without a Content-Type."""

    sent = await call(APP, headers=headers, body=[b"x"])

    assert (sent.status, sent.body) == (200, b"x")


async def test_request_without_a_body_passes():
    headers = [(b"content-type", b"text/plain")]

    sent = await call(APP, headers=headers, scope={"method": "GET"})

    assert sent.status == 200


FORM = (b"content-type", b"application/x-www-form-urlencoded")
OCTETS = (b"content-type", b"application/octet-stream")
FROM_A_PAGE = [(b"origin", b"null"), (b"referer", b"http://x/"), (b"sec-fetch-site", b"cross-site")]


@pytest.mark.parametrize("given", [FORM, OCTETS])
async def test_triton_clients_pass(given):
    """On KServe's paths tensors are octets, and `curl -d` declares JSON as a form."""

    sent = await call(APP, headers=[given], body=[b"x"], scope={"path": "/v2/models/m/infer"})

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

    sent = await call(APP, headers=headers, body=[], scope={"path": path})

    assert sent.status == 415


async def test_unknown_path_is_404_with_any_type():
    app = ContentType(echo, route_scope_of=lambda _: "nowhere")

    sent = await call(app, headers=[FORM], body=[b"x"], scope={"path": "/api/chat"})

    assert sent.status == 200


async def test_error_names_the_header_to_send():
    """As an option for curl."""
    sent = await call(APP, headers=[FORM], body=[])

    assert b"-H 'Content-Type: application/json'" in sent.body
