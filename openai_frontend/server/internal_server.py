"""Listeners besides the main one, in the same process and event loop: for /metrics, and for decode
servers.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.middleware.error_responses import send_error
from openai_frontend.middleware.request_id import RequestId
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.serving.error_reply import http_error

PATH = "/metrics"
_DATE_EVERY_S = 1.0  # and before the first request after a pause

_NOT_FOUND = http_error(404, "This port serves only /metrics.", "unknown_url")


class MetricsOnly:
    """The application without its other routes; authentication and metrics still apply."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._not_found = RequestId(_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") != PATH:
            await self._not_found(scope, receive, send)
        else:
            path = {"path": PATH, "raw_path": PATH.encode()} if scope["type"] == "http" else {}
            await self._app({**scope, **path}, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await send_error(scope, send, _NOT_FOUND)


class QuietServer(uvicorn.Server):
    """uvicorn's server, without a look ten times a second whether it should exit."""

    def __init__(self, config: uvicorn.Config, heartbeat: Heartbeat) -> None:
        super().__init__(config)
        self._heartbeat = heartbeat
        self._exiting = asyncio.Event()

    def exit(self) -> None:
        """Begins the shutdown."""
        self.should_exit = True
        self._exiting.set()

    async def main_loop(self) -> None:
        """Updates the `date` header until the shutdown begins."""
        dates = asyncio.get_running_loop().create_task(self._update_dates())
        self._heartbeat.on_wake.append(self._update_date)
        try:
            await self._exiting.wait()
        finally:
            self._heartbeat.on_wake.remove(self._update_date)
            dates.cancel()

    async def _update_dates(self) -> None:
        while True:
            self._update_date()
            await self._heartbeat.next(_DATE_EVERY_S)

    def _update_date(self) -> None:
        date = [(b"date", formatdate(usegmt=True).encode())] if self.config.date_header else []
        self.server_state.default_headers = date + self.config.encoded_headers


class InternalServer(QuietServer):
    """Starts and stops with the main server, which handles the signals."""

    def __init__(
        self, config: uvicorn.Config, heartbeat: Heartbeat, listener: socket.socket
    ) -> None:
        super().__init__(config, heartbeat)
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    def start(self, tls: ssl.SSLContext | None) -> None:
        """Begins to serve."""
        self.config.load()
        self.config.ssl = tls
        self._serving = asyncio.get_running_loop().create_task(self.serve([self._listener]))

    async def stop(self) -> None:
        """Stops, and waits for it."""
        if self._serving is not None:
            self.exit()
            await self._serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The main server handles them."""
        yield
