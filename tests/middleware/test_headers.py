"""Headers for browsers, on whatever leaves the server: answers, refusals, and what is no HTTP."""

import httpx
import pytest

from openai_frontend.middleware.headers import security_headers
from tests.routers.mock_gateway import exchange, request

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
REQUESTS = {
    "answer": request("GET /v1/models"),
    "stream": request(
        "POST /v1/completions",
        "content-type: application/json",
        body=b'{"model": "mock", "prompt": "hi", "stream": true}',
    ),
    "refusal": request("GET /nowhere"),
    "malformed": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("sent", REQUESTS.values(), ids=REQUESTS)
def test_every_answer(mock_gateway, sent):
    """Each has them; over plain HTTP nothing asks for HTTPS."""
    headers = exchange(mock_gateway.port, sent).headers

    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "strict-transport-security" not in headers


def test_page(mock_gateway):
    """The page of the API may load what is this server's, and nothing else."""
    policy = httpx.get(f"{mock_gateway.url}/docs").headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_https():
    """Who came by HTTPS once comes by HTTPS for a year."""
    assert dict(security_headers(tls=True)) == {
        **HEADERS,
        "strict-transport-security": "max-age=31536000",
    }
