"""Follows an identity provider's keys, in a file or at an address. A request never waits for it."""

import asyncio
import contextlib
import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit

from openai_frontend.auth.jwt_verifier import InvalidJWKS, JWTVerifier
from openai_frontend.loopback import is_loopback

logger = logging.getLogger(__name__)

FETCH_EVERY_S = 300.0
RETRY_EVERY_S = 5.0
# A token may name a key that does not exist: each does not send us to the provider.
ASK_AGAIN_S = 30.0

_TIMEOUT_S = 10.0
_MAX_BYTES = 1024 * 1024


class JWKSWatcher:
    """Gives `tokens` the keys as they are now; while they cannot be had, as they were."""

    def __init__(self, source: str, tokens: JWTVerifier) -> None:
        """`source`: a path, or an address. Raises ValueError for an address without TLS."""
        _check_source(source)
        self._source = source
        self._tokens = tokens
        self._content: bytes | None = None
        self._failing = False
        self._asked = asyncio.Event()
        self._looked_s = -ASK_AGAIN_S
        tokens.on_unknown_key = self._on_unknown_key

    async def follow(self, every_s: float = FETCH_EVERY_S) -> None:
        """Looks for ever, more often while it fails."""
        while True:
            self._asked.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_EVERY_S if self._failing else every_s):
                    await self._asked.wait()

    async def look(self) -> None:
        """Takes the provider's keys where they are others; off the loop."""
        self._looked_s = time.monotonic()
        try:
            content = await asyncio.wrap_future(_read_apart(self._source))
            if content != self._content:
                count = self._tokens.use(content)
                logger.info("%s: %d signing keys are in force", self._source, count)
        except (InvalidJWKS, OSError, HTTPException) as error:
            if not self._failing:
                logger.error("%s: %s; no other signing keys are taken", self._source, error)
            self._failing = True
            return
        self._content, self._failing = content, False

    def _on_unknown_key(self) -> None:
        if time.monotonic() - self._looked_s >= ASK_AGAIN_S:
            self._asked.set()


def _check_source(source: str) -> None:
    """What says who may come in comes from a file, over TLS, or from this machine."""
    parts = urlsplit(source)
    if not _is_address(source) or parts.scheme == "https":
        return
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        raise ValueError(f"'{source}' is neither a file nor an https address")


def _is_address(source: str) -> bool:
    return "://" in source


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The operator has said where the keys are; nobody else does."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


_open: Callable[..., IO[bytes]] = urllib.request.build_opener(_NoRedirect).open


def _read_apart(source: str) -> Future[bytes]:
    """`_read`, on a thread that nobody waits for at the end of the process, as for the event loop's
    own: a name may take a minute to resolve, which the limit below does not count.
    """
    outcome = Future[bytes]()
    threading.Thread(target=_read_into, args=(outcome, source), name="jwks", daemon=True).start()
    return outcome


def _read_into(outcome: Future[bytes], source: str) -> None:
    outcome.set_running_or_notify_cancel()
    try:
        outcome.set_result(_read(source))
    except Exception as error:  # noqa: BLE001  raised where it is waited for
        outcome.set_exception(error)
        del outcome  # the error's traceback refers to this frame: a connection would be kept


def _read(source: str) -> bytes:
    """OSError, which urllib's are too, where it cannot be had."""
    if not _is_address(source):
        return Path(source).read_bytes()
    try:
        with _open(source, timeout=_TIMEOUT_S) as response:
            content = response.read(_MAX_BYTES + 1)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    if len(content) > _MAX_BYTES:
        raise InvalidJWKS(f"more than {_MAX_BYTES} bytes")
    return content
