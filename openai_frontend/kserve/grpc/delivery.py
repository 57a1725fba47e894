"""Responses that a client does not read. gRPC keeps them in memory until it does, or its connection
ends: cancelling the call frees nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from openai_frontend.kserve.grpc.connections import RpcConnections

# A proxy has one connection for many clients: while other calls run on it, it stays this many
# periods, so that the proxy can end the stalled stream alone. Envoy does so after 5 minutes.
_PERIODS = 10


class Delivery:
    """Closes the client's connection unless it reads what gRPC has been given for a call."""

    def __init__(
        self,
        connections: RpcConnections,
        peer: str,
        period_s: float,
        disconnected: Callable[[], None],
    ) -> None:
        """Looks every `period_s` seconds, and calls `disconnected` after it closed a connection."""
        self._connections = connections
        self._peer = peer
        self._period_s = period_s
        self._disconnected = disconnected
        self._periods = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(period_s, self._check)

    def _check(self) -> None:
        self._periods += 1
        if self._periods < _PERIODS and self._connections.in_use(self._peer):
            self._timer = self._loop.call_later(self._period_s, self._check)
        elif self._connections.close(self._peer):
            self._disconnected()

    def end(self, *_: object) -> None:
        """The client has read everything, or is gone."""
        self._timer.cancel()


class StreamWrites:
    """Writes the responses of a stream, in a task of its own: a write cannot be taken back, so one
    that the client does not read outlives the work on its call.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        responses: AsyncIterator[bytes],
        seconds: float,
    ) -> None:
        """A write may take `seconds`."""
        self._write = write
        self._responses = responses
        self._seconds = seconds
        self._begun_s: float | None = None  # of the current write; None: nothing is being written
        loop = self._loop = asyncio.get_running_loop()
        self._stalled: asyncio.Future[None] = loop.create_future()
        # One for all writes: a timer of its own would cost each message 8 us
        self._timer = loop.call_later(seconds, self._check)
        self.task = loop.create_task(self._run())

    async def _run(self) -> None:
        time, write = self._loop.time, self._write
        async for response in self._responses:
            self._begun_s = time()
            await write(response)
            self._begun_s = None
            if self._stalled.done():
                return

    def _check(self) -> None:
        now_s = self._loop.time()
        due_s = (now_s if self._begun_s is None else self._begun_s) + self._seconds
        if due_s > now_s:
            self._timer = self._loop.call_at(due_s, self._check)
        else:
            self._stalled.set_result(None)

    async def finish(self) -> None:
        """Raises what the responses raise, or TimeoutError if one write takes too long: the task
        waits for it then.
        """
        waited: list[asyncio.Future[Any]] = [self.task, self._stalled]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._timer.cancel()
            if not self._stalled.done() and not self.task.done():
                self.task.cancel()
                await asyncio.wait([self.task])
        if not self.task.done():
            self.task.add_done_callback(_retrieve)
            raise TimeoutError
        self.task.result()


def _retrieve(task: asyncio.Task[None]) -> None:
    """If the connection ends, the write fails, after the call has been answered."""
    if not task.cancelled():
        task.exception()
