"""No spelling of a path, host or method bypasses API keys (CVE-2026-48710, CVE-2026-24206,
CVE-2026-24207).

tests/medium/routers/test_access.py tries every route without a key, with an unknown key and with a
key of each wrong scope, in process. These tests send raw bytes to a real gateway process.
"""

import json
import re

import pytest

from tests.api.routers.mock_gateway import RawResponse, exchange
from tests.security.guarded import KEY, Guarded, check_refused

OPEN = {
    "/", "/docs", "/favicon.ico", "/health", "/healthz", "/ping",
    "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready",
}  # fmt: skip
METRICS = {"/metrics", "/metrics/", "/version", "/v2/models/stats", "/v2/models/mock/stats"}


def documented(guarded: Guarded) -> list[tuple[str, str]]:
    """Method and path of every route in the gateway's OpenAPI document and some that it omits."""
    document = json.loads(guarded.ask("GET /openapi.json").body)
    filled = [
        (method.upper(), re.sub(r"\{[^}]*\}", "mock", path))
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("get", "post", "put", "delete", "patch")
    ]
    more = [
        ("GET", "/"), ("GET", "/favicon.ico"), ("GET", "/healthz"), ("GET", "/ping"),
        ("HEAD", "/health"), ("HEAD", "/v1/models"), ("GET", "/v1/models/"),
        ("POST", "/v1/chat/completions/"), ("GET", "/metrics/"), ("HEAD", "/docs"),
        ("GET", "/docs"), ("GET", "/openapi.json"), ("POST", "/invocations"),
        ("GET", "/v2/logging"), ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/static/swagger-ui.css"), ("POST", "/v1/invocations"), ("GET", "/redoc"),
    ]  # fmt: skip
    return [*filled, *more]


def check_refused_by(method: str, response: RawResponse, *statuses: int) -> None:
    """An answer to HEAD has no envelope to check."""
    if method == "HEAD":
        assert response.status in statuses
    else:
        check_refused(response, *statuses)


def test_every_route_requires_a_key(guarded):
    """Without a key or with an unknown key: 401, except for the routes that the settings leave
    open.
    """
    routes = documented(guarded)
    for method, path in routes:
        for key in (None, "sk-nobody"):
            response = guarded.ask(f"{method} {path}", key=key)
            if path in OPEN:
                assert response.status in (200, 204, 503), (path, response)
            else:
                check_refused_by(method, response, 401)
    assert len(routes) > 40


def test_a_key_with_the_metrics_scope_opens_nothing_else(guarded):
    for method, path in documented(guarded):
        if path not in OPEN | METRICS:
            response = guarded.ask(f"{method} {path}", key="sk-metrics")
            check_refused_by(method, response, 403, 404, 405)


HOSTS = [
    "a/health/live?", "a/metrics#", "a#", "a@b", "test/health/live", "localhost:1/metrics", "[::1]",
    "127.0.0.1", "x" * 1000, "a\tb", "%00", "metrics",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_no_host_header_bypasses_the_key(guarded, host):
    for path in ("/v1/models", "/v1/chat/completions"):
        sent = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        response = exchange(guarded.process.port, sent)
        assert response.status in (400, 401), (host, response)


TARGETS = [
    "//v1/models",
    "/./v1/models",
    "/health/live/../../v1/models",
    "/health/live/..%2f..%2fv1/models",
    "/health/live/%2e%2e/%2e%2e/v1/models",
    "/%76%31/models",
    "/v1%2fmodels",
    "/v1/models%00",
    "/v1/models%20",
    "/v1/models/",
    "/v1/models/.",
    "/v1/models?/health/live",
    "/v1/models#/health/live",
    "/v1/models;/health/live",
    "/V1/Models",
    "/v1\\models",
    "http://a/health/live/../../v1/models",
    "http://metrics/v1/models",
    "http://a/v1/models",
    "/metrics/../v1/models",
    "/metrics%2f..%2fv1/models",
    "/version/../v2/repository/index",
]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "PURGE"]


@pytest.mark.parametrize("target", TARGETS)
def test_no_spelling_of_a_path_bypasses_the_key(guarded, target):
    """A target that resembles a path needs the same key as that path, with any method."""
    for method in METHODS:
        sent = f"{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        response = exchange(guarded.process.port, sent)
        assert response.status in (400, 401), (method, target, response)


HEADERS = [
    "x-original-url: /health/live",
    "x-rewrite-url: /metrics",
    "x-forwarded-prefix: /health",
    "x-forwarded-path: /health/live",
    "x-http-method-override: GET",
    "x-method-override: OPTIONS",
    "x-forwarded-for: 127.0.0.1",
    "x-forwarded-host: localhost",
    "forwarded: for=127.0.0.1;host=localhost",
    "x-real-ip: 127.0.0.1",
    "x-authenticated-user: canary",
    "triton-allow: 1",
    "root-path: /health",
    "authorization : Bearer " + KEY,
]


@pytest.mark.parametrize("header", HEADERS)
def test_proxy_headers_do_not_bypass_the_key(guarded, header):
    """The gateway does not trust what these headers say about the caller or the path."""
    for line in ("GET /v1/models", "POST /v1/chat/completions", "POST /v2/repository/index"):
        response = guarded.ask(line, b"{}", header, key=None)
        assert response.status in (400, 401), (header, response)


def test_a_key_is_valid_for_one_request_only(guarded):
    """The next request on the connection must bring its own key."""
    first = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    second = "GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

    response = exchange(guarded.process.port, (first + second).encode())

    assert response.status == 200
    assert b"HTTP/1.1 401" in response.body
