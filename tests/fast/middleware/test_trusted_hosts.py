"""Host headers that the server accepts."""

import json

import pytest

from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS, LOCAL, TrustedHosts
from tests.fast.middleware.asgi import call, echo

APP = TrustedHosts(echo, allowed=["api.example.com", "*.inner.example.com", "[::1]", "127.0.0.1"])


async def status(*hosts: bytes, path: str = "/v1/models") -> int:
    headers = [(b"host", host) for host in hosts]
    return (await call(APP, headers=headers, scope={"path": path})).status


@pytest.mark.parametrize(
    "host",
    [
        b"api.example.com", b"API.example.com", b"api.example.com:9000", b"api.example.com.",
        b"a.inner.example.com", b"a.b.inner.example.com:1", b"[::1]", b"[::1]:9000",
        b"127.0.0.1:80",
    ],
)  # fmt: skip
async def test_allowed_names(host):
    """Ignoring case, port and a final dot; a star matches one or more labels."""
    assert await status(host) == 200


BAD = [
    b"", b"evil.example", b"example.com", b"inner.example.com", b"xapi.example.com",
    b"api.example.com.evil.example", b"evil@api.example.com", b"api.example.com@evil",
    b"api.example.com/x?", b"api.example.com#", b"api.example.com?x", b"api.example.com:9000:1",
    b"api.example.com:", b"api.example.com:80x", b" api.example.com", b"api.example.com\tx",
    b"api.example.com,evil", b"http://api.example.com", b"api.example.com%00",
    b"\xffapi.example.com",
    b"[::1", b"::1", b"[::2]", b"127.0.0.2", b"a" * 300,
    b"evil.inner.example.com/.inner.example.com",
]  # fmt: skip


@pytest.mark.parametrize("host", BAD)
async def test_other_names_are_rejected(host):
    """Including forms that programs parse differently."""
    assert await status(host) == 400


@pytest.mark.parametrize(
    "hosts", [[], [b"api.example.com"] * 2, [b"api.example.com", b"evil.example"]]
)
async def test_missing_or_repeated_host_is_rejected(hosts):
    """Two Host headers are rejected even if they are equal."""
    assert await status(*hosts) == 400


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ([], "The Host header is missing."),
        ([b"a", b"a"], "The Host header must be one host name"),
        ([b"a@b"], "The Host header must be one host name"),
        ([b"evil.example"], "--allowed-hosts"),
    ],
)
async def test_error_names_the_problem(hosts, told):
    """The header is missing, malformed or not allowed."""
    sent = await call(APP, headers=[(b"host", host) for host in hosts])

    assert told in json.loads(sent.body)["error"]["message"]


async def test_http_1_0_needs_no_host():
    """But a Host header is checked."""
    got = [
        (await call(APP, headers=headers, scope={"http_version": "1.0"})).status
        for headers in ([], [(b"host", b"evil.example")])
    ]

    assert got == [200, 400]


async def test_error_envelope():
    """It does not repeat the name."""
    sent = await call(APP, headers=[(b"host", b"evil.example")])

    assert json.loads(sent.body)["error"]["code"] == "invalid_host"
    assert b"evil" not in sent.body


@pytest.mark.parametrize("path", sorted(HEALTH_PATHS))
async def test_health_checks_pass_with_any_host(path):
    assert await status(b"10.1.2.3:9000", path=path) == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"localhost", 200), (b"LOCALHOST:9000", 200), (b"a.localhost", 200), (b"127.0.0.1", 200),
        (b"127.0.0.1:9000", 200), (b"[::1]:9000", 200), (b"192.168.1.2", 200),
        (b"host.docker.internal:9000", 200), (b"evil.example", 400), (b"a.internal", 400),
        (b"127.0.0.1.evil.example", 400), (b"localhost.evil.example", 400), (b"127.1", 400),
        (b"2130706433", 400), (b"0x7f.1", 400), (b"[127.0.0.1]", 400), (b"[::g]", 400),
        (b"gateway", 400), (b"", 400),
    ],
)  # fmt: skip
async def test_default_names(host, expected):
    """Names and addresses of this machine; no web page can have one of them."""
    app = TrustedHosts(echo, allowed=LOCAL, addresses=True)

    sent = await call(app, headers=[(b"host", host)], scope={"path": "/v1/models"})

    assert sent.status == expected
