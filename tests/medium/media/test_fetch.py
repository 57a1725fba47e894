"""Media is fetched from allowed hosts at public addresses alone, within limits, over real TLS."""

import asyncio
import base64
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from openai_frontend.media import fetch
from openai_frontend.media.fetch import (
    FetchesBusy,
    FetchFailed,
    FetchTooLarge,
    MediaFetcher,
    MediaURL,
    NameResolver,
    is_public,
    parse,
)
from tests.medium.media.media_server import HOST, media_server, network, response

BODY = bytes(range(256)) * 40
URL = MediaURL(HOST, "/a.png?b=c")

NOT_FETCHED = [
    "https://169.254.169.254/latest/meta-data",
    "https://[::ffff:7f00:1]/",
    "https://[2606:4700::1111]/",
    "https://0x7f.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://0177.0.0.1/",
    "https://127.0.0.%31/",
    "https://127.1/",
    "https://media.example.0x7f/",
    "https://a\\@media.example.com/",
    "https://media.example.com\\@b.example.com/",
    "https://media.example.com/a\\b",
    "https://media.example.com./",
    "https://media.example.com:444/",
    "https://media.example.com:80/",
    "https://media.example.com:/",
    "https://media.example.com:0443/",
    "http://media.example.com/",
    "http://media.example.com:443/",
    "https:media.example.com/",
    "https:/media.example.com/",
    "https:///media.example.com/",
    "https://user@media.example.com/",
    "https://user:password@media.example.com/",
    "https://media.example.com@b.example.com/",
    "https://bücher.example.com/",
    "https://media.example.com/ü",
    "https://media。example。com/",
    "https://media.ex\u017fample.com/",
    "https://media.examp\u212ae.com/",
    "http\u017f://media.example.com/",
    "https://ⓜedia.example.com/",
    "https://media.example%2ecom/",
    "https://media..example.com/",
    "https://.example.com/",
    "https://localhost/",
    "https://media.example.com/a b",
    "https://media.example.com/a\tb",
    "https://media.example.com/a\r\nhost: b",
    "https://media.example.com/\x00",
    "https://media.example.com/\x7f",
    "https://media.example.com/\n",
    " https://media.example.com/",
    "https://media.example.com/" + "a" * 8192,
    "https://" + "a" * 64 + ".example.com/",
    "https://" + "a.b." * 63 + "cc/",
    "file:///etc/passwd",
    "ftp://media.example.com/",
    "//media.example.com/",
    "",
]


@pytest.mark.parametrize("url", NOT_FETCHED)
def test_other_forms_of_urls_are_not_parsed(url: str) -> None:
    """Addresses in every notation, other ports, user names, and what parsers disagree about."""
    assert parse(url) is None


PARSED = {
    "https://media.example.com": (HOST, "/"),
    "https://media.example.com/a.png": (HOST, "/a.png"),
    "HTTPS://Media.Example.COM:443/A.png?b=%20/@:?": (HOST, "/A.png?b=%20/@:?"),
    "https://media.example.com?b": (HOST, "/?b"),
    "https://media.example.com/a?b#c#@d:1/": (HOST, "/a?b"),
    "https://media.example.com#@127.0.0.1/": (HOST, "/"),
    "https://xn--bcher-kva.example.com/": ("xn--bcher-kva.example.com", "/"),
    "https://1.2.3.4.example.com/": ("1.2.3.4.example.com", "/"),
    "https://my_bucket.s3.example.com//a": ("my_bucket.s3.example.com", "//a"),
}


@pytest.mark.parametrize("url", PARSED)
def test_host_and_target_are_those_of_the_url(url: str) -> None:
    """The fragment stays here, as in browsers."""
    assert parse(url) == PARSED[url]


REFUSED = (
    "0.0.0.0 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.0.1 168.63.129.16 "
    "169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 "
    "198.18.0.1 198.51.100.1 203.0.113.1 224.0.1.1 239.1.1.1 240.0.0.1 255.255.255.255 :: ::1 "
    "::7f00:1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 "
    "64:ff9b::10.0.0.1 64:ff9b:1::1 100::1 2001::1 2001:0:7f00:1:: 2001:db8::1 2002:7f00:1:: "
    "2002:808:808:: 3fff::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 "
    "media.example.com"
)
PUBLIC = "8.8.8.8 1.1.1.1 172.32.0.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize("address", REFUSED.split())
def test_addresses_of_no_public_server_are_refused(address: str) -> None:
    """Private, shared, link-local, multicast, of clouds, and IPv6 addresses that embed such."""
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses_are_not_refused(address: str) -> None:
    assert is_public(address)


class Results:
    """How fetches ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def fetcher(self, port: int, *addresses: str, **options: Any) -> MediaFetcher:
        reached = network(port, *addresses, **options)
        return MediaFetcher([HOST, "*.cdn.example.com"], reached, self.seen.append)


@pytest.fixture
def results() -> Results:
    return Results()


async def fetched(fetcher: MediaFetcher, max_bytes: int = 10**6) -> bytes:
    text = await fetcher.fetch(URL, accept="image/*", max_bytes=max_bytes, take=lambda size: None)
    return base64.b64decode(text, validate=True)


async def failure(fetcher: MediaFetcher, max_bytes: int = 10**6) -> str:
    with pytest.raises(FetchFailed) as failed:
        async with asyncio.timeout(60):
            await fetched(fetcher, max_bytes)
    return str(failed.value)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (HOST, True),
        ("a.cdn.example.com", True),
        ("a.b.cdn.example.com", True),
        ("cdn.example.com", False),
        ("acdn.example.com", False),
        ("example.com", False),
        (f"a.{HOST}", False),
        (f"{HOST}.evil.example", False),
        ("a.cdn.example.com.evil.example", False),
    ],
)
def test_only_listed_hosts_are_allowed(results: Results, host: str, allowed: bool) -> None:
    """A wildcard stands for all subdomains, not for the domain."""
    found = results.fetcher(443).allowed(f"https://{host}/x")

    assert found == (MediaURL(host, "/x") if allowed else None)
    assert results.seen == ([] if allowed else ["not_allowed"])


async def test_body_is_fetched_by_the_name_of_the_host(results: Results) -> None:
    """SNI and Host are the name; nothing else of the gateway or its client is sent."""
    async with media_server(response(BODY)) as server:
        assert await fetched(results.fetcher(server.port)) == BODY

    assert server.names == [HOST]
    assert server.requests == [
        b"GET /a.png?b=c HTTP/1.1\r\nhost: media.example.com\r\naccept: image/*\r\n"
        b"accept-encoding: identity\r\nuser-agent: openai-frontend\r\n\r\n"
    ]
    assert results.seen == ["fetched"]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1", "8.8.8.8"]])
async def test_a_private_address_is_not_dialled(results: Results, addresses: list[str]) -> None:
    """Nor are the public ones beside it."""
    async with media_server(response(BODY)) as server:
        dialled: list[str] = []
        fetcher = results.fetcher(server.port, *addresses, is_allowed=is_public)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(fetcher._network.transport),
                "handle_async_request",
                lambda *_: dialled.append("request"),
            )
            assert await failure(fetcher) == "refused_address"

        assert await failure(results.fetcher(server.port, *addresses, is_allowed=is_public))
    assert dialled == []
    assert server.connections == 0


async def test_name_is_resolved_once_and_that_address_dialled(results: Results) -> None:
    """A second lookup could get another answer (DNS rebinding)."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    asked = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    async with media_server(response(BODY)) as server:
        allowed = {"is_allowed": lambda address: address == "127.0.0.1", "resolve": resolve}
        assert await fetched(results.fetcher(server.port, **allowed)) == BODY

    assert asked == [HOST]


async def test_next_address_is_dialled_if_one_does_not_answer(results: Results) -> None:
    """Nothing listens at the first."""
    async with media_server(response(BODY)) as server:
        assert await fetched(results.fetcher(server.port, "127.0.0.2", "127.0.0.1")) == BODY


async def test_certificate_must_be_that_of_the_name(results: Results) -> None:
    """The request is not sent."""
    async with media_server(response(BODY), certificate="other.example.com") as server:
        assert await failure(results.fetcher(server.port)) == "unreachable"

    assert server.requests == []


async def test_no_proxy_of_the_environment_is_used(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would connect to whatever it is asked for."""
    async with media_server() as proxy, media_server(response(BODY)) as server:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await fetched(results.fetcher(server.port)) == BODY

    assert proxy.connections == 0


async def test_no_redirect_is_followed(results: Results) -> None:
    """Not even to the same host."""
    async with media_server() as other:
        for place in (f"https://127.0.0.1:{other.port}/", f"https://{HOST}/b"):
            moved = response(b"", f"location: {place}", status="302 Found")
            async with media_server(moved) as server:
                assert await failure(results.fetcher(server.port)) == "status"
            assert server.connections == 1

    assert other.connections == 0


def after(head: bytes, *, pause: bool = False) -> Any:
    """Sends this; with `pause`, nothing more, else it closes the connection."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        if not pause:
            writer.close()

    return answer


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MANY = CHUNKED + b"1\r\na\r\n" * 65_537 + b"0\r\n\r\n"
ANSWERS = {
    "not found": (response(BODY, status="404 Not Found"), "status"),
    "partial": (response(BODY, status="206 Partial Content"), "status"),
    "gzip": (response(BODY, "content-encoding: gzip"), "compressed"),
    "gzip within identity": (response(BODY, "content-encoding: identity, gzip"), "compressed"),
    "length says more": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", "unreachable"),
    "two lengths": (response(BODY, "content-length: 1"), "unreachable"),
    "chunks end early": (CHUNKED + b"5\r\nabcde\r\n", "unreachable"),
    "not HTTP": (b"SSH-2.0-x\r\n\r\n", "unreachable"),
    "nothing": (b"", "unreachable"),
    "huge header": (b"HTTP/1.1 200 OK\r\na: " + b"x" * 10**6, "unreachable"),
    "many chunks": (MANY, "chunks"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_odd_answers_are_failures(results: Results, name: str) -> None:
    """With a reason for the metrics."""
    answer, result = ANSWERS[name]
    async with media_server(after(answer)) as server:
        assert await failure(results.fetcher(server.port)) == result

    assert results.seen == [result]


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na", CHUNKED])
async def test_slow_answers_time_out(results: Results, head: bytes) -> None:
    """However far they are."""
    async with media_server(after(head, pause=True)) as server:
        fetcher = results.fetcher(server.port, timeout_s=0.3)
        assert await failure(fetcher) == "timeout"

    assert results.seen == ["timeout"]


async def test_slow_lookup_times_out(results: Results) -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    assert await failure(results.fetcher(443, resolve=resolve, timeout_s=0.05)) == "timeout"


async def test_bytes_are_limited_by_the_length_and_as_they_arrive(results: Results) -> None:
    """A declared length is refused before anything is read; without one, the bytes count."""
    declared = b"HTTP/1.1 200 OK\r\ncontent-length: 10241\r\n\r\n"
    chunked = CHUNKED + b"2801\r\n" + b"a" * 10_241 + b"\r\n0\r\n\r\n"
    closing = b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 10_241
    for answer in (after(declared, pause=True), after(chunked), after(closing)):
        async with media_server(answer) as server:
            with pytest.raises(FetchTooLarge):
                await fetched(results.fetcher(server.port), 10_240)
    async with media_server(response(BODY)) as server:
        assert await fetched(results.fetcher(server.port), 10_240) == BODY

    assert results.seen == ["too_large"] * 3 + ["fetched"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 65_535, 65_536, 200_001])
async def test_pieces_of_every_length_make_one_text(results: Results, size: int) -> None:
    """Base64 is made of pieces, whose bytes are told as they come."""
    body, told = (BODY * 20)[:size], list[int]()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for start in range(0, size, 30_011):
            piece = body[start : start + 30_011]
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async with media_server(answer) as server:
        text = await results.fetcher(server.port).fetch(
            URL, accept="image/*", max_bytes=10**6, take=told.append
        )

    assert text == base64.b64encode(body).decode()
    assert sum(told) == len(text)


async def test_connections_are_not_kept(results: Results) -> None:
    """That of one name would serve another at the same address."""
    async with media_server(response(BODY)) as server:
        fetcher = results.fetcher(server.port)
        await fetched(fetcher)
        await fetched(fetcher)

    assert server.connections == 2
    assert server.names == [HOST, HOST]


async def test_cancelling_closes_the_connection(results: Results) -> None:
    async with media_server(after(b"", pause=True)) as server:
        task = asyncio.create_task(fetched(results.fetcher(server.port)))
        while not server.requests:  # noqa: ASYNC110  the server has no event for it
            await asyncio.sleep(0.005)
        task.cancel()
        async with asyncio.timeout(30):
            await server.closed.wait()

    assert results.seen == ["aborted"]


async def test_fetches_beyond_the_limit_wait(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And get another error than those that failed: it is no fault of the URL."""
    monkeypatch.setattr(fetch, "MAX_FETCHES", 1)
    release = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(response(BODY))

    async with media_server(answer) as server:
        waiting = results.fetcher(server.port)
        first = asyncio.create_task(fetched(waiting))
        second = asyncio.create_task(fetched(waiting))
        while not server.requests:  # noqa: ASYNC110  the server has no event for it
            await asyncio.sleep(0.005)
        assert server.connections == 1
        release.set()
        assert await first == await second == BODY

        release.clear()
        hurried = results.fetcher(server.port, timeout_s=0.1)
        await hurried._slots.acquire()
        with pytest.raises(FetchesBusy):
            await fetched(hurried)


async def test_names_are_resolved_without_search_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trailing dot: in Kubernetes, `a.example.com.default.svc.cluster.local` would be first."""
    asked = []

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        asked.append((host, threading.current_thread().daemon))
        return [(2, 1, 6, "", ("1.2.3.4", port)), (10, 1, 6, "", ("2606::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    assert await NameResolver().resolve("a.example.com") == ["1.2.3.4", "2606::1"]
    assert asked == [("a.example.com.", True)]


async def test_hanging_lookups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with the lookup, not with the request that waits."""
    release = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        release.wait(60)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fetch, "_MAX_LOOKUPS", 2)
    resolver = NameResolver()
    waiting = [asyncio.create_task(resolver.resolve("a.example.com")) for _ in range(2)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)

    with pytest.raises(OSError, match="too many lookups"):
        await resolver.resolve("a.example.com")
    release.set()
    async with asyncio.timeout(30):
        while not resolver._free.acquire(blocking=False):  # noqa: ASYNC110  a thread has no event
            await asyncio.sleep(0.005)


def test_nothing_is_imported_unless_it_fetches() -> None:
    """httpx takes 0.1 s to import."""
    code = "import sys, openai_frontend.app as a; print('httpx' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert found.stdout == "False\n"


async def test_failures_log_neither_path_nor_query(
    results: Results, caplog: pytest.LogCaptureFixture
) -> None:
    """They are part of a prompt."""
    caplog.set_level("DEBUG", "openai_frontend")
    async with media_server(response(BODY, status="500 Oh")) as server:
        await failure(results.fetcher(server.port))

    assert f"media was not fetched: host={HOST} result=status" in caplog.text
    assert "a.png" not in caplog.text
