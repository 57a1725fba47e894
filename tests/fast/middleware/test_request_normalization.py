"""The form in which everything behind it sees a request."""

import pytest

from openai_frontend.middleware.request_normalization import RequestNormalization, normalized_path
from tests.fast.middleware.asgi import call

SEEN = [
    ("GET", "/v1/models", "GET", "/v1/models"),
    ("GET", "/v1/models/", "GET", "/v1/models"),
    ("POST", "/v1/chat/completions/", "POST", "/v1/chat/completions"),
    ("GET", "/v1/models//", "GET", "/v1/models/"),
    ("GET", "/", "GET", "/"),
    ("HEAD", "/", "GET", "/"),
    ("HEAD", "/health/", "GET", "/health"),
    ("OPTIONS", "*", "OPTIONS", "*"),
]


@pytest.mark.parametrize(("method", "path", "seen_method", "seen_path"), SEEN)
async def test_what_is_seen(method, path, seen_method, seen_path):
    """One slash at the end is dropped, and HEAD is GET."""
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["method"], scope["path"]))

    await call(RequestNormalization(app), scope={"method": method, "path": path})

    assert seen == [(seen_method, seen_path)]


BELOW = [
    ("/llm/v1/models", "/v1/models"),
    ("/v1/models", "/v1/models"),
    ("/llm/v1/models/", "/v1/models"),
    ("/llm", "/"),
    ("/llm/", "/"),
    ("/", "/"),
    ("/llm//v1/models", "//v1/models"),
    ("/llmx/v1/models", "/llmx/v1/models"),
    ("/llm/llm/v1/models", "/llm/v1/models"),
]


@pytest.mark.parametrize(("path", "expected"), BELOW)
def test_root_path(path, expected):
    """It is dropped once, where the proxy has not dropped it already."""
    assert normalized_path(path, "/llm") == expected
