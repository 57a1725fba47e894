"""The gateway compares keys by digest in constant time (CVE-2025-59425) and gives every invalid key
the same response.

tests/fast/auth/test_api_keys.py tests the comparison, and
tests/medium/middleware/test_authentication.py tests arbitrary headers.
"""

import pytest

from tests.api.routers.mock_gateway import request
from tests.security.guarded import CHAT, KEY, check_refused

WRONG = {
    "nobody's": b"Bearer sk-nobody",
    "one letter off": b"Bearer " + KEY.encode()[:-1] + b"0",
    "longer": b"Bearer " + KEY.encode() + b"x",
    "its beginning": b"Bearer " + KEY.encode()[:-1],
    "no ASCII": "Bearer schlüssel".encode(),
    "no UTF-8": b"Bearer \xff\xfe",
    "long": b"Bearer " + b"x" * 30_000,
    "empty": b"Bearer ",
    "the scheme alone": b"bearer",
    "another scheme": b"Basic " + KEY.encode(),
    "the key alone": KEY.encode(),
    "quotes": b'Bearer "' + KEY.encode() + b'"',
    "two of them": b"Bearer " + KEY.encode() + b", Bearer x",
    "tab": b"Bearer\t" + KEY.encode(),
    "percent": b"Bearer " + KEY.encode().replace(b"-", b"%2d"),
    "a digest": b"Bearer " + b"a" * 64,
    "SQL": b"Bearer ' OR 1=1 --",
}
RIGHT = [b"Bearer " + KEY.encode(), b"bearer " + KEY.encode(), b"BEARER   " + KEY.encode() + b"  "]


def asked(*headers: bytes) -> bytes:
    sent = request("GET /v1/models")
    return sent[:-2] + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_key_gets_401_without_the_key(guarded, name):
    response = guarded.raw(asked(b"authorization: " + WRONG[name]))

    check_refused(response, 401)
    assert KEY.encode() not in response.body


def test_invalid_keys_get_identical_responses(guarded):
    """An unknown key and a key that is almost valid get the same bytes."""
    answers = {
        guarded.raw(asked(b"authorization: " + WRONG[name])).body
        for name in ("nobody's", "one letter off", "longer", "its beginning", "long", "a digest")
    }

    assert len(answers) == 1


def test_two_different_keys_get_401(guarded):
    """The server cannot know which of the two a proxy has checked. The same key twice counts as
    one.
    """
    right, wrong = (b"authorization: Bearer " + each.encode() for each in (KEY, "sk-x"))

    check_refused(guarded.raw(asked(right, wrong)), 401)
    check_refused(guarded.raw(asked(wrong, right)), 401)
    assert guarded.raw(asked(right, right)).status == 200


@pytest.mark.parametrize("header", RIGHT, ids=range(3))
def test_the_scheme_ignores_case_and_extra_spaces(guarded, header):
    """HTTP allows both."""
    assert guarded.raw(asked(b"authorization: " + header)).status == 200


@pytest.mark.parametrize("place", ["?api_key=", "?key=", "?access_token="])
def test_keys_outside_the_authorization_header_are_ignored(guarded, place):
    """Logs keep addresses, so a key in an address does not count; nor does one in a cookie or a
    body.
    """
    check_refused(guarded.ask(f"GET /v1/models{place}{KEY}", key=None), 401)
    check_refused(guarded.ask("GET /v1/models", b"", f"cookie: authorization={KEY}", key=None), 401)
    body = b'{"model": "mock", "api_key": "%s", "messages": []}' % KEY.encode()
    check_refused(guarded.ask(f"POST {CHAT}", body, key=None), 401)
