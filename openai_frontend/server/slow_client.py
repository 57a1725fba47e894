"""Detects a client that does not read its response, from the transport's write buffer."""

import asyncio
from collections.abc import Callable

CHECKS = 4  # per timeout


class SlowClientDetector:
    """Checks the connection only while data waits in the buffer.

    While the writers are paused, and after the last write, the buffer can only shrink, and only by
    what the client reads. If it shrinks at all, the timeout starts again.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        timeout_s: float,
        is_paused: Callable[[], bool],
        disconnect: Callable[[], None],
    ) -> None:
        """`is_paused`: nothing writes to the buffer now. `disconnect` closes the connection."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._is_paused = is_paused
        self._disconnect = disconnect
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._buffered = 0
        self._since_s = 0.0

    def watch(self) -> None:
        """Starts checking, until the buffer is empty."""
        if self._next is None:
            self._buffered = self._transport.get_write_buffer_size()
            self._since_s = self._loop.time()
            self._schedule()

    def stop(self) -> None:
        """Stops checking."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _schedule(self) -> None:
        self._next = self._loop.call_later(self._timeout_s / CHECKS, self._check)

    def _check(self) -> None:
        self._next = None
        buffered, now_s = self._transport.get_write_buffer_size(), self._loop.time()
        if not buffered or not self._is_paused():
            return
        if buffered < self._buffered:
            self._since_s = now_s
        self._buffered = buffered
        if now_s - self._since_s >= self._timeout_s:
            self._disconnect()
        else:
            self._schedule()
