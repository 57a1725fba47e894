"""Polls an identity provider's signing keys, from a file or a URL. Requests never wait for it."""

import asyncio
import contextlib
import logging
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit

from openai_frontend.auth.jwt_verifier import InvalidJWKS, JWTVerifier
from openai_frontend.runtime.background_tasks import in_daemon_thread
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.runtime.loopback import is_loopback

logger = logging.getLogger(__name__)

FETCH_INTERVAL_S = 300.0
RETRY_INTERVAL_S = 5.0
# A client can send tokens with made-up key ids: they cause at most one request to the provider in
# this time.
UNKNOWN_KEY_COOLDOWN_S = 30.0

_TIMEOUT_S = 10.0
_MAX_BYTES = 1024 * 1024


class JWKSWatcher:
    """Passes the provider's keys to the verifier. If they are unavailable, keeps the old ones."""

    def __init__(self, source: str, verifier: JWTVerifier) -> None:
        """`source`: a path or a URL. Raises ValueError for a URL without TLS."""
        _check_source(source)
        self._source = source
        self._verifier = verifier
        self._content: bytes | None = None
        self._failing = False
        self._reload = asyncio.Event()
        self._fetched_s = -UNKNOWN_KEY_COOLDOWN_S
        verifier.on_unknown_key = self._on_unknown_key

    async def watch(self, heartbeat: Heartbeat, interval_s: float = FETCH_INTERVAL_S) -> None:
        """Runs until it is cancelled; retries sooner after a failure. The intervals are too long
        for the heartbeat to matter.
        """
        while True:
            self._reload.clear()
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_INTERVAL_S if self._failing else interval_s):
                    await self._reload.wait()

    async def refresh(self) -> None:
        """Fetches the keys in a thread, and uses them if they have changed."""
        self._fetched_s = time.monotonic()
        try:
            content = await in_daemon_thread("jwks", partial(_read, self._source))
            if content != self._content:
                count = self._verifier.set_keys(content)
                logger.info("%s: loaded %d signing keys", self._source, count)
        except (InvalidJWKS, OSError, HTTPException) as error:
            if not self._failing:
                logger.error("%s: %s; the previous signing keys stay in force", self._source, error)
            self._failing = True
            return
        self._content, self._failing = content, False

    def _on_unknown_key(self) -> None:
        if time.monotonic() - self._fetched_s >= UNKNOWN_KEY_COOLDOWN_S:
            self._reload.set()


def _check_source(source: str) -> None:
    """The keys decide about access: only files, HTTPS and HTTP to this host are allowed."""
    parts = urlsplit(source)
    if not _is_url(source) or parts.scheme == "https":
        return
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        raise ValueError(f"'{source}' is neither a file nor an https URL")


def _is_url(source: str) -> bool:
    return "://" in source


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Only the operator decides where the keys come from."""

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


def _read(source: str) -> bytes:
    """Raises OSError (urllib's errors are OSErrors too), HTTPException or InvalidJWKS."""
    if not _is_url(source):
        return Path(source).read_bytes()
    try:
        with _open(source, timeout=_TIMEOUT_S) as response:
            content = response.read(_MAX_BYTES + 1)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    if len(content) > _MAX_BYTES:
        raise InvalidJWKS(f"the response is larger than {_MAX_BYTES} bytes")
    return content
