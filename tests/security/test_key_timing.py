"""Keys are compared by digest in constant time (CVE-2025-59425), and every invalid key gets the
same response.

tests/unit/auth/test_api_keys.py tests the comparison, and
tests/unit/middleware/test_authentication.py arbitrary headers.
"""

import pytest

from tests.security.guarded import CHAT, KEY, check_refused
from tests.unit.routers.mock_gateway import request

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
def test_no_key(guarded, name):
    """A 401 that says nothing of the key."""
    response = guarded.raw(asked(b"authorization: " + WRONG[name]))

    check_refused(response, 401)
    assert KEY.encode() not in response.body


def test_all_alike(guarded):
    """A key that nobody has is answered as one that is nearly somebody's, to the byte."""
    answers = {
        guarded.raw(asked(b"authorization: " + WRONG[name])).body
        for name in ("nobody's", "one letter off", "longer", "its beginning", "long", "a digest")
    }

    assert len(answers) == 1


def test_two_keys(guarded):
    """Nobody knows which of two a proxy has read, so both are none; the same one twice is one."""
    right, wrong = (b"authorization: Bearer " + each.encode() for each in (KEY, "sk-x"))

    check_refused(guarded.raw(asked(right, wrong)), 401)
    check_refused(guarded.raw(asked(wrong, right)), 401)
    assert guarded.raw(asked(right, right)).status == 200


@pytest.mark.parametrize("header", RIGHT, ids=range(3))
def test_the_key(guarded, header):
    """The scheme's letters and spaces are HTTP's to vary."""
    assert guarded.raw(asked(b"authorization: " + header)).status == 200


@pytest.mark.parametrize("place", ["?api_key=", "?key=", "?access_token="])
def test_other_places(guarded, place):
    """A key in an address, which logs keep, is none."""
    check_refused(guarded.ask(f"GET /v1/models{place}{KEY}", key=None), 401)
    check_refused(guarded.ask("GET /v1/models", b"", f"cookie: authorization={KEY}", key=None), 401)
    body = b'{"model": "mock", "api_key": "%s", "messages": []}' % KEY.encode()
    check_refused(guarded.ask(f"POST {CHAT}", body, key=None), 401)
