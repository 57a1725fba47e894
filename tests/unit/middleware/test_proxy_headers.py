"""Client address and scheme, with and without proxies."""

import pytest

from openai_frontend.middleware.proxy_headers import ProxyHeaders
from tests.unit.middleware.asgi import call, echo

NETWORKS = ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]
PROXY = ("10.0.0.1", 4711)

Told = tuple[str | None, str]


async def told(headers: list[tuple[str, str]], *, trusted=NETWORKS, client=PROXY) -> Told:
    """The client's address and the scheme, as the application sees them."""
    scope = {"client": client, "scheme": "http"}
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["client"] and scope["client"][0], scope["scheme"]))
        await echo(scope, receive, send)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await call(ProxyHeaders(app, trusted=trusted), headers=raw, scope=scope)
    told: Told = seen[0]
    return told


XFF, XFP, FWD = "x-forwarded-for", "x-forwarded-proto", "forwarded"
BELIEVED = [
    ([(XFF, "198.51.100.9")], ("198.51.100.9", "http")),
    ([(XFF, "198.51.100.9"), (XFP, "https")], ("198.51.100.9", "https")),
    ([(XFF, "203.0.113.1, 198.51.100.9")], ("198.51.100.9", "http")),
    ([(XFF, "198.51.100.9, 10.1.1.1,192.0.2.7")], ("198.51.100.9", "http")),
    ([(XFF, "203.0.113.1"), (XFF, "198.51.100.9")], ("198.51.100.9", "http")),
    ([(XFF, "198.51.100.9:1234")], ("198.51.100.9", "http")),
    ([(XFF, "[2001:db9::9]:1234")], ("2001:db9::9", "http")),
    ([(XFF, "2001:db9::9")], ("2001:db9::9", "http")),
    ([(XFF, "::ffff:198.51.100.9")], ("198.51.100.9", "http")),
    ([(XFF, "10.9.9.9, 10.1.1.1")], ("10.9.9.9", "http")),
    ([(FWD, "for=198.51.100.9;proto=https")], ("198.51.100.9", "https")),
    ([(FWD, 'For="[2001:db9::9]:80"; Proto=HTTPS; by=10.0.0.1')], ("2001:db9::9", "https")),
    ([(FWD, 'for="203.0.113.1, x", for=198.51.100.9')], ("198.51.100.9", "http")),
    ([(XFF, "198.51.100.9"), (FWD, "for=198.51.100.9")], ("198.51.100.9", "http")),
]


@pytest.mark.parametrize(("headers", "expected"), BELIEVED)
async def test_client_is_the_nearest_untrusted_address(headers, expected):
    assert await told(headers) == expected


NOT_BELIEVED = [
    [],
    [(XFP, "https")],
    [(XFF, "")],
    [(XFF, "unknown")],
    [(XFF, "198.51.100.9, unknown")],
    [(XFF, "example.com")],
    [(XFF, "198.51.100.9\x00")],
    [(XFF, "256.1.1.1")],
    [(XFF, "fe80::1%eth0 status=200")],
    [(FWD, 'for="fe80::1%x client=203.0.113.1"')],
    [(FWD, "for=_hidden")],
    [(FWD, "for=198.51.100.9, for")],
    [(FWD, 'for="198.51.100.9')],
    [(FWD, ";" * 2000)],
    [(XFF, "198.51.100.9"), (FWD, "for=203.0.113.1")],
    [(XFF, "198.51.100.9"), (XFP, "https"), (FWD, "for=198.51.100.9;proto=http")],
]


@pytest.mark.parametrize("headers", NOT_BELIEVED)
async def test_invalid_or_contradicting_headers_are_ignored(headers):
    """The proxy's own address stays."""
    assert await told(headers) == (PROXY[0], "http")


@pytest.mark.parametrize("client", [("198.51.100.1", 1), ("11.0.0.1", 1), ("192.0.2.8", 1), None])
async def test_headers_of_other_peers_are_ignored(client):
    headers = [(XFF, "203.0.113.1"), (XFP, "https"), (FWD, "for=203.0.113.1;proto=https")]

    assert await told(headers[:2], client=client) == (client and client[0], "http")
    assert await told(headers[2:], client=client) == (client and client[0], "http")


async def test_unix_socket_peer():
    """It has no address, and is trusted as `unix`."""
    headers = [(XFF, "203.0.113.1")]

    assert await told(headers, trusted=["unix"], client=None) == ("203.0.113.1", "http")
    assert await told(headers, trusted=["unix"]) == (PROXY[0], "http")


async def test_other_schemes_are_ignored():
    assert await told([(XFF, "203.0.113.1"), (XFP, "javascript")]) == ("203.0.113.1", "http")
