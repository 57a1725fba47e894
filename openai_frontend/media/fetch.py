"""Fetches media by URLs of requests: over https, from hosts that the operator allows, at public
addresses. Nothing of a client's URL is parsed twice: what is checked is what is dialled.
"""

import asyncio
import logging
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple

from pybase64 import b64encode_as_string

from openai_frontend.runtime.background_tasks import ThreadUnavailable, in_daemon_thread

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0  # of one fetch, from the lookup of the name to the last byte
MAX_FETCHES = 32  # at a time; further ones wait
_CONNECT_TIMEOUT_S = 3.0  # for each address
_MAX_ADDRESSES = 3
# A lookup cannot be cancelled: its thread may stay for a minute after the fetch has failed
_MAX_LOOKUPS = 64
_PIECE_BYTES = 48 * 1024  # encoded at once, in 10 us; divisible by three
_MAX_CHUNKS = 65_536  # of a response: each costs 15 us, however small it is
_CHUNKS_AT_ONCE = 64  # between two turns of the event loop
_PORT = 443
_MAX_URL = 8192

# A name has at least one dot and ends with a letter, so it cannot be an address in any notation.
# The URL has no user name, no other port, no backslash and only printable ASCII.
_URL = re.compile(
    r"https://((?:[a-z0-9_-]{1,63}\.)+[a-z][a-z0-9-]{0,62})(?::443)?"
    r"((?:/[!-\"$-\[\]-~]*)?(?:\?[!-\"$-\[\]-~]*)?)(?:#[!-\[\]-~]*)?",
    re.ASCII | re.IGNORECASE,  # else U+017F and U+212A are letters, too: s and k
)
_MAX_HOST = 253

_NAT64 = IPv6Network("64:ff9b::/96")  # the last 32 bits are the IPv4 address that is reached
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Python calls some of these global, depending on its version
_REFUSED = tuple(
    map(
        ip_network,
        (
            "100.64.0.0/10",  # shared address space; Alibaba's metadata
            "168.63.129.16/32",  # Azure's host
            "192.0.0.0/24",  # IETF protocols; Oracle's metadata
            "192.88.99.0/24",  # 6to4 relays
            "2001::/23",  # IETF protocols, such as Teredo
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)


class FetchFailed(Exception):
    """Nothing was fetched. The message is the `result` in the metrics, never a client's."""


class FetchTooLarge(FetchFailed):
    """The response is longer than the limit."""

    def __init__(self) -> None:
        super().__init__("too_large")


class FetchesBusy(FetchFailed):
    """Too many other fetches are running."""

    def __init__(self) -> None:
        super().__init__("busy")


class MediaURL(NamedTuple):
    """A URL that may be fetched."""

    host: str  # in lower case
    target: str  # path and query


def parse(url: str) -> MediaURL | None:
    """None for a URL that is not https to port 443 of a host name, in plain form."""
    match = _URL.fullmatch(url) if len(url) <= _MAX_URL else None
    if match is None or len(match[1]) > _MAX_HOST:
        return None
    target = match[2] if match[2].startswith("/") else f"/{match[2]}"
    return MediaURL(match[1].lower(), target)


def is_public(address: str) -> bool:
    """Whether an address that a name resolves to belongs to the internet."""
    try:
        parsed = ip_address(address)
    except ValueError:  # such as fe80::1%eth0
        return False
    if isinstance(parsed, IPv6Address):
        embedded = parsed.ipv4_mapped
        if embedded is None and parsed in _NAT64:
            embedded = IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if embedded is not None:
            return is_public(str(embedded))
        if parsed not in _GLOBAL_UNICAST:
            return False
    if parsed.is_multicast or parsed.is_reserved or not parsed.is_global:
        return False
    return not any(parsed in network for network in _REFUSED)


Resolve = Callable[[str], Awaitable[Sequence[str]]]


class NameResolver:
    """Looks up names in daemon threads, for which the process does not wait at exit. Those of the
    event loop are for other work: a few lookups that hang would use them all.
    """

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_MAX_LOOKUPS)

    async def resolve(self, host: str) -> Sequence[str]:
        """The addresses of a complete name, without search domains. Raises OSError."""
        if not self._free.acquire(blocking=False):
            raise OSError("too many lookups are running")
        try:
            return await in_daemon_thread("media lookup", partial(self._look_up, host))
        except ThreadUnavailable:
            self._free.release()
            raise

    def _look_up(self, host: str) -> Sequence[str]:
        try:
            found = socket.getaddrinfo(
                f"{host}.", _PORT, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            return [str(address[0]) for *_, address in found]
        finally:
            self._free.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How fetches reach servers. Tests replace it, so that theirs may be on this machine."""

    transport: "httpx.AsyncBaseTransport"
    resolve: Resolve
    is_allowed: Callable[[str], bool] = is_public  # for addresses
    port: int = _PORT
    timeout_s: float = TIMEOUT_S  # of one fetch


def internet(trusted: ssl.SSLContext | None = None) -> Network:
    """Public servers. A transport alone reads no proxies and credentials from the environment, as
    a client would. It keeps no connection: httpx would use that of one name for another at the
    same address, whose certificate is unchecked.

    `trusted`: None for the system's certificates, or those of SSL_CERT_FILE.
    """
    import httpx  # takes 0.1 s

    transport = httpx.AsyncHTTPTransport(
        verify=trusted or ssl.create_default_context(),
        limits=httpx.Limits(max_connections=MAX_FETCHES, max_keepalive_connections=0),
    )
    return Network(transport=transport, resolve=NameResolver().resolve)


class MediaFetcher:
    """Fetches media. One per process."""

    def __init__(
        self, domains: Sequence[str], network: Network, on_result: Callable[[str], None]
    ) -> None:
        """`domains`: names, and `*.example.com` for all subdomains. `on_result` gets the
        result of each fetch.
        """
        self._names = frozenset(each for each in domains if not each.startswith("*."))
        self._endings = tuple(each[1:] for each in domains if each.startswith("*."))
        self._network = network
        self._on_result = on_result
        self._slots = asyncio.Semaphore(MAX_FETCHES)

    def allowed(self, url: str) -> MediaURL | None:
        """None if the URL must not be fetched."""
        parsed = parse(url)
        if parsed is not None:
            host = parsed.host
            if host in self._names or host.endswith(self._endings):
                return parsed
        self._on_result("not_allowed")
        return None

    async def fetch(
        self, url: MediaURL, *, accept: str, max_bytes: int, take: Callable[[int], None]
    ) -> str:
        """The body in base64. `take` gets the length of each piece and refuses it by raising.

        Raises FetchTooLarge, FetchesBusy, or FetchFailed for everything else.
        """
        result = "aborted"
        try:
            async with self._slot(), asyncio.timeout(self._network.timeout_s):
                text = await self._fetch(url, accept, max_bytes, take)
            result = "fetched"
        except TimeoutError:
            result = "timeout"
            raise FetchFailed(result) from None
        except FetchFailed as failure:
            result = str(failure)
            raise
        finally:
            self._on_result(result)
            if result != "fetched":  # path and query are part of a prompt
                logger.info("media was not fetched: host=%s result=%s", url.host, result)
        return text

    async def close(self) -> None:
        await self._network.transport.aclose()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._network.timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise FetchesBusy from None
        try:
            yield
        finally:
            self._slots.release()

    async def _fetch(
        self, url: MediaURL, accept: str, max_bytes: int, take: Callable[[int], None]
    ) -> str:
        response = await self._open(url, await self._addresses(url.host), accept)
        try:
            _check_head(response, max_bytes)
            return await _read(response, max_bytes, take)
        finally:
            with suppress(_http_error()):
                await response.aclose()

    async def _addresses(self, host: str) -> Sequence[str]:
        """The host's addresses. One address that is not public refuses them all."""
        try:
            addresses = list(dict.fromkeys(await self._network.resolve(host)))
        except OSError as error:
            logger.debug("media host is not resolved: host=%s %s", host, error)
            raise FetchFailed("unresolved") from None
        refused = [each for each in addresses if not self._network.is_allowed(each)]
        if refused:
            logger.debug("media host has a refused address: host=%s address=%s", host, refused[0])
            raise FetchFailed("refused_address")
        return addresses[:_MAX_ADDRESSES]

    async def _open(self, url: MediaURL, addresses: Sequence[str], accept: str) -> "httpx.Response":
        """The response of the first address that answers."""
        import httpx

        for address in addresses:
            request = httpx.Request(
                "GET",
                httpx.URL(
                    scheme="https",
                    host=address,
                    port=self._network.port,
                    raw_path=url.target.encode(),
                ),
                headers={
                    "host": url.host,
                    "accept": accept,
                    "accept-encoding": "identity",
                    "user-agent": "openai-frontend",
                },
                # The certificate must be that of the name
                extensions={
                    "sni_hostname": url.host,
                    "timeout": {"connect": _CONNECT_TIMEOUT_S},
                },
            )
            try:
                return await self._network.transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                logger.debug("media host: host=%s address=%s %r", url.host, address, error)
            except httpx.HTTPError as error:
                logger.debug("media host: host=%s address=%s %r", url.host, address, error)
                raise FetchFailed("unreachable") from None
        raise FetchFailed("unreachable")


def _http_error() -> type[Exception]:
    import httpx

    return httpx.HTTPError


def _check_head(response: "httpx.Response", max_bytes: int) -> None:
    if response.status_code != 200:
        raise FetchFailed("status")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise FetchFailed("compressed")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise FetchTooLarge


async def _read(response: "httpx.Response", max_bytes: int, take: Callable[[int], None]) -> str:
    """The body in base64, encoded while it arrives."""
    pieces, pending = list[str](), bytearray()
    size = chunks = 0

    def encode(end: int) -> None:
        piece = b64encode_as_string(pending[:end])
        take(len(piece))
        pieces.append(piece)
        del pending[:end]

    try:
        async for chunk in response.aiter_raw():
            size, chunks = size + len(chunk), chunks + 1
            if size > max_bytes:
                raise FetchTooLarge
            if chunks > _MAX_CHUNKS:
                raise FetchFailed("chunks")
            if chunks % _CHUNKS_AT_ONCE == 0:
                await asyncio.sleep(0)  # what is buffered comes without waiting
            pending += chunk
            if len(pending) >= _PIECE_BYTES:
                encode(len(pending) // 3 * 3)
    except _http_error() as error:
        logger.debug("media response ended: %r", error)
        raise FetchFailed("unreachable") from None
    encode(len(pending))
    return "".join(pieces)
