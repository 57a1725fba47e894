"""The prefill servers of a decode server: which of them are up, and how to ask one."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from openai_frontend.runtime.background_tasks import in_daemon_thread, next_tick, supervise
from schemas.transfer import PrefillRequest, PrefillResponse

logger = logging.getLogger(__name__)

PREFILL_PATH, HEALTH_PATH = "/internal/prefill", "/internal/health"

_PROBE_EVERY_S = 1.0
_PROBE_TIMEOUT_S = 5.0
# Limit for an engine's side channel. vLLM would wait 5 s for an address without a listener, and
# all other handshakes with it (docs/decisions/0024-disaggregation.md).
_CONNECT_TIMEOUT_S = 1.0
_RESOLVE_EVERY_S = 5.0  # as long as CoreDNS lets Kubernetes' names be cached by default
# Servers behind one name. Each is probed, so as many as the client keeps idle connections.
_MOST_ADDRESSES = 64


class PrefillFailed(Exception):
    """No prefill server has computed the prompt. The message is the `reason` in the metrics."""


class PrefillPeer:
    """One prefill server."""

    def __init__(self, url: str, ip: str | None = None) -> None:
        """`ip`: of the servers behind the name in `url`, the one at this address."""
        self.key = (url, ip)
        self.url = url if ip is None else _with_host(url, ip)
        self.address = url.partition("://")[2]
        self.resolved = ip is not None or not _has_name(url)
        # The server and its certificate are known by the name
        self.headers = {} if ip is None else {"host": self.address}
        self.extensions = {} if ip is None else {"sni_hostname": urlsplit(url).hostname}
        self.healthy = False
        self.refused_key = False
        self.late = False  # the last probe timed out
        self.running = 0  # requests
        self._engines: set[tuple[str, int]] = set()  # side channels that have been reached

    def mark(self, healthy: bool, why: object = "") -> None:
        """Log changes. Engines of a server that was down are tried again before their next use."""
        if healthy and not self.healthy:
            logger.info("prefill server is up: url=%s", self.url)
        elif self.healthy and not healthy:
            logger.warning("prefill server is down: url=%s reason=%s", self.url, why)
            self._engines.clear()
        self.healthy = healthy

    async def reach(self, host: str, port: int) -> None:
        """Raises PrefillFailed if no process listens at the side channel of the server's engine."""
        if (host, port) in self._engines:
            return
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except OSError as error:  # TimeoutError is one
            logger.warning("cannot reach a prefill engine: address=%s:%d %s", host, port, error)
            raise PrefillFailed("peer_unreachable") from None
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self._engines.add((host, port))


class PrefillPeers:
    """Asks the healthy server with the fewest requests of this one.

    A name has a server at each of its addresses, which are looked up again and again.
    """

    def __init__(self, urls: Sequence[str], key: str, *, timeout_s: float) -> None:
        """`key` has the scope `transfer` on each server."""
        self.peers = [PrefillPeer(url) for url in urls]
        self._urls = list(urls)
        self._addresses: dict[str, list[str]] = {}  # of the names, by URL
        self._lost: set[str] = set()  # URLs whose last lookup failed
        self._key = key
        self.timeout_s = timeout_s
        self._client: Any = None  # httpx.AsyncClient, which needs 0.1 s to import
        self._probes: asyncio.TaskGroup | None = None  # None: not watched
        self._probing: dict[PrefillPeer, asyncio.Task[None]] = {}

    async def watch(self) -> None:
        """Probe all servers until cancelled, so that one that is down costs requests no time."""
        async with asyncio.TaskGroup() as self._probes:
            self._arrange()
            await supervise("resolve prefill servers", self._resolve)

    def replace(self, urls: Collection[str]) -> None:
        """Use these servers. Those that stay keep their state; requests to the others finish."""
        self._urls = list(dict.fromkeys(urls))
        self._arrange()

    def _arrange(self) -> None:
        """Have a peer for each address of a name, and for each URL without a name."""
        known = {peer.key: peer for peer in self.peers}
        keys = [
            (url, ip)
            for url in self._urls
            for ip in self._addresses.get(url, [None])[:_MOST_ADDRESSES]
        ]
        self.peers = [known.get(key) or PrefillPeer(*key) for key in keys]
        for peer in self._probing.keys() - set(self.peers):
            self._probing.pop(peer).cancel()
        if self._probes is None:
            return
        for peer in self.peers:
            if peer.resolved and peer not in self._probing:
                probe = supervise(f"probe prefill server {peer.url}", partial(self._watch, peer))
                self._probing[peer] = self._probes.create_task(probe)

    async def _resolve(self) -> None:
        """Look up the names until cancelled."""
        while True:
            for url in [url for url in self._urls if _has_name(url)]:
                await self._look_up(url)
            await next_tick(_RESOLVE_EVERY_S)

    async def _look_up(self, url: str) -> None:
        """Without an answer, as if the name has no address, its servers stay: probes know more."""
        try:
            addresses = await _addresses_of(url)
        except (OSError, ValueError) as error:  # a name that IDNA cannot encode is a ValueError
            if url not in self._lost:
                logger.warning("cannot look up a prefill server: url=%s %s", url, error)
            self._lost.add(url)
            return
        self._lost.discard(url)
        if addresses == self._addresses.get(url):
            return
        if len(addresses) > _MOST_ADDRESSES:
            logger.warning(
                "prefill servers behind one name are too many: url=%s addresses=%d used=%d",
                url, len(addresses), _MOST_ADDRESSES,
            )  # fmt: skip
        self._addresses[url] = addresses
        self._arrange()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def choose(self, address: str | None = None) -> PrefillPeer | None:
        """A healthy server; the one with this `HOST:PORT` if it is given. None without one."""
        able = [each for each in self.peers if each.healthy and address in (None, each.address)]
        return min(able, key=lambda peer: peer.running, default=None)

    async def prefill(self, peer: PrefillPeer, request: PrefillRequest) -> PrefillResponse:
        """Have a server compute a prompt, without a limit of time. Raises PrefillFailed."""
        import httpx

        peer.running += 1
        try:
            response = await self._http().post(
                f"{peer.url}{PREFILL_PATH}",
                content=request.model_dump_json(),
                headers={"content-type": "application/json", **peer.headers},
                extensions=peer.extensions,
                timeout=None,
            )
        except httpx.HTTPError as error:
            peer.mark(healthy=False, why=repr(error))
            raise PrefillFailed("peer_unreachable") from None
        finally:
            peer.running -= 1
        if response.status_code != 200:
            logger.warning(
                "prefill server refused a prompt: url=%s status=%d %s",
                peer.url, response.status_code, response.text[:256],
            )  # fmt: skip
            raise PrefillFailed("peer_refused")
        try:
            return PrefillResponse.model_validate_json(response.content)
        except ValidationError as error:
            logger.warning("prefill server sent an invalid response: url=%s %s", peer.url, error)
            raise PrefillFailed("peer_invalid") from None

    async def _watch(self, peer: PrefillPeer) -> None:
        while True:
            await self._probe(peer)
            await asyncio.sleep(_PROBE_EVERY_S)

    async def _probe(self, peer: PrefillPeer) -> None:
        import httpx

        try:
            response = await self._http().get(
                f"{peer.url}{HEALTH_PATH}",
                headers=peer.headers,
                extensions=peer.extensions,
                timeout=_PROBE_TIMEOUT_S,
            )
        except httpx.TimeoutException as error:
            # A busy server may answer one probe late; it still computes prompts.
            peer.mark(peer.healthy and not peer.late, why=repr(error))
            peer.late = True
            return
        except httpx.HTTPError as error:
            peer.mark(healthy=False, why=repr(error))
            return
        peer.late = False
        if response.status_code in (401, 403) and not peer.refused_key:
            logger.error(
                "prefill server rejects transfer_key: url=%s. Give its key the scope 'transfer'.",
                peer.url,
            )
        peer.refused_key = response.status_code in (401, 403)
        peer.mark(response.status_code == 200, f"status {response.status_code}")

    def _http(self) -> Any:
        if self._client is None:
            import httpx

            logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
            self._client = httpx.AsyncClient(
                headers={"authorization": f"Bearer {self._key}"},
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=False,  # no proxy in between
            )
        return self._client


def _has_name(url: str) -> bool:
    """Whether the host is a name, not an address."""
    try:
        ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return True
    return False


def _with_host(url: str, ip: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{f'[{ip}]' if ':' in ip else ip}:{parts.port}"


async def _addresses_of(url: str) -> list[str]:
    """Addresses of the host, in an order that does not change. Raises OSError and ValueError."""
    parts = urlsplit(url)
    ask = partial(socket.getaddrinfo, parts.hostname, parts.port, type=socket.SOCK_STREAM)
    found = await in_daemon_thread("resolve prefill servers", ask)
    return sorted({str(address[0]) for *_, address in found})
