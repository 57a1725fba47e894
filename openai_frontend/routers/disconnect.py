"""Notices that a client has gone while its answer is still being made."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from openai_frontend.errors import RequestCancelled


class CancelOnDisconnect:
    """`async with CancelOnDisconnect(receive):` ends its body with RequestCancelled.

    One task for each request waits for the disconnect; the body runs in the caller's own task, so
    its `finally` blocks run where it stands, which is what cancels the Triton request. The counting
    of cancellations is that of `asyncio.timeout`: a cancellation from elsewhere stays one.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("CancelOnDisconnect works inside a task only")
        self._task = task
        self._cancelling = task.cancelling()
        self._watch = asyncio.get_running_loop().create_task(self._cancel_when_gone())

    async def _cancel_when_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # a rest of the body that nobody wants
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        if not self._gone:
            return
        ours = self._task.uncancel() <= self._cancelling
        if ours and isinstance(error, asyncio.CancelledError):
            raise RequestCancelled("The client went away.") from error
