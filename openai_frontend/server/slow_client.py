"""Notices a client that takes nothing of what waits for it. Looks at one connection's transport."""

import asyncio
from collections.abc import Callable

LOOKS = 4  # in the time that a client has


class SlowClientDetector:
    """Begins to look when there is something to wait for; costs nothing before.

    While writers wait, and after the last of them, what the transport holds can only become less:
    that it does is the client's reading. Where a client reads at all it has the time anew.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        timeout_s: float,
        waits: Callable[[], bool],
        drop: Callable[[], None],
    ) -> None:
        """`waits` says whether nobody writes more for now, `drop` ends the connection."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._waits = waits
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.TimerHandle | None = None
        self._left = 0
        self._since_s = 0.0

    def watch(self) -> None:
        """From now on, until all has been taken."""
        if self._next is None:
            self._left = self._transport.get_write_buffer_size()
            self._since_s = self._loop.time()
            self._look_later()

    def stop(self) -> None:
        """The connection is over."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look_later(self) -> None:
        self._next = self._loop.call_later(self._timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        self._next = None
        left, now_s = self._transport.get_write_buffer_size(), self._loop.time()
        if not left or not self._waits():
            return
        if left < self._left:
            self._since_s = now_s
        self._left = left
        if now_s - self._since_s >= self._timeout_s:
            self._drop()
        else:
            self._look_later()
