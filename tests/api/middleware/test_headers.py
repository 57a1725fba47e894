"""Security headers on all responses: results, errors, and answers to malformed HTTP."""

import httpx
import pytest

from openai_frontend.middleware.headers import response_headers
from tests.api.routers.mock_gateway import exchange, request

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
def test_every_response_has_security_headers(mock_gateway, sent):
    """Over plain HTTP there is no HSTS header, and without `replica_name` no server is named."""
    headers = exchange(mock_gateway.port, sent).headers

    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert headers.keys().isdisjoint({"strict-transport-security", "x-served-by", "server"})


def test_docs_page_loads_only_from_this_server(mock_gateway):
    policy = httpx.get(f"{mock_gateway.url}/docs").headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_https_sets_hsts_for_a_year():
    assert dict(response_headers(tls=True)) == {
        **HEADERS,
        "strict-transport-security": "max-age=31536000",
    }
