"""Client address and scheme, with and without proxies."""

import pytest

from openai_frontend.middleware import proxy_headers
from openai_frontend.middleware.proxy_headers import (
    _PARAMETER,
    MAX_NODES,
    ProxyHeaders,
    _address,
)
from tests.fast.middleware.asgi import call, echo

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


TRUSTED = [f"10.{number // 256}.{number % 256}.1" for number in range(5000)]
LONG = {
    "x-forwarded-for": lambda nodes: [(XFF, ",".join(nodes))],
    "many x-forwarded-for": lambda nodes: [(XFF, each) for each in nodes],
    "forwarded": lambda nodes: [(FWD, ",".join(f"for={each}" for each in nodes))],
    "quoted": lambda nodes: [(FWD, ",".join(f'for="{each}"' for each in nodes))],
    "both": lambda nodes: [
        (XFF, ",".join(nodes)),
        (FWD, ",".join(f"for={each}" for each in nodes)),
    ],
}


@pytest.fixture
def read(monkeypatch):
    """The addresses that the middleware has parsed."""
    parsed = []

    def address(text):
        parsed.append(text)
        return _address(text)

    monkeypatch.setattr(proxy_headers, "_address", address)
    return parsed


@pytest.mark.parametrize("form", LONG)
async def test_only_the_nearest_nodes_are_read(form, read):
    """A client may send any number of them: a chain of too many proxies is not believed, and what
    is before the nearest client costs nothing.
    """
    assert await told(LONG[form](TRUSTED)) == (PROXY[0], "http")
    assert len(read) <= 2 * MAX_NODES + 3

    read.clear()
    assert (await told(LONG[form]([*TRUSTED, "198.51.100.9", "10.1.1.1"])))[0] == "198.51.100.9"
    assert len(read) <= 5


@pytest.mark.parametrize(
    "header",
    ["for=1;" * 9000, '"' * 60_000, '",' * 30_000, "for=" + "1" * 60_000, " " * 60_000,
     "," * 60_000, 'for="' + "," * 60_000, "for=10.0.0.1;" * 4000],
    ids=lambda header: header[:9],
)  # fmt: skip
async def test_long_elements_are_read_in_few_steps(header, monkeypatch):
    """Each step is one match, linear in what it matches."""
    steps = []

    class Counted:
        def match(self, text, at):
            steps.append(at)
            return _PARAMETER.match(text, at)

    monkeypatch.setattr(proxy_headers, "_PARAMETER", Counted())

    assert await told([(FWD, header)]) == (PROXY[0], "http")
    assert len(steps) <= MAX_NODES + 16


async def test_malformed_elements_before_the_nearest_client_do_not_matter():
    """The client sent them; the proxy appended its own."""
    assert (await told([(FWD, 'for="x,;;, for=198.51.100.9')]))[0] == "198.51.100.9"


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
