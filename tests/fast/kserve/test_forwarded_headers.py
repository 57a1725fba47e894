"""Headers that become parameters of a model: which ones a pattern selects."""

import re

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve.forwarded_headers import ForwardedHeaders


def selected(pattern: str, *headers: tuple[bytes, bytes]):
    return ForwardedHeaders(re.compile(pattern, re.IGNORECASE)).select(headers)


def test_whole_name_must_match():
    """Without regard to case; names become lower case and repeated values are joined."""
    headers = [(b"X-User", b"a"), (b"x-user", b"b"), (b"x-user-agent", b"c"), (b"ax-user", b"d")]

    assert selected("x-USER", *headers) == {"x-user": "a, b"}
    assert ForwardedHeaders(None).select(headers) is None


def test_secrets_are_never_selected():
    """Whatever the pattern."""
    secret = [b"Authorization", b"proxy-authorization", b"X-API-Key", b"api-key", b"cookie"]

    assert selected(".*", *((name, b"x") for name in secret)) == {}


@pytest.mark.parametrize(
    "headers",
    [
        [(b"priority", b"1")],
        [(b"triton_x", b"1")],
        [(f"x-{number}".encode(), b"") for number in range(65)],
        [(b"x", b"y" * 8192)],
    ],
)
def test_refused_headers(headers):
    """Names with a meaning for Triton, too many, and too long ones."""
    with pytest.raises(InvalidRequest):
        selected(".*", *headers)
