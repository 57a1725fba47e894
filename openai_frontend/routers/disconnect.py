"""Notices that a client has gone while its answer is still being made."""

import asyncio
from types import TracebackType

from starlette.types import Scope

from openai_frontend.errors import RequestCancelled


class CancelledOnDisconnect:
    """`with CancelledOnDisconnect(scope):` ends its body with RequestCancelled.

    The server's word for a lost connection is a future, in the scope's state; other servers give
    none, and then the body runs to its end. Not ASGI's message: a task would have to wait for it,
    and it left the whole request to the garbage collector (docs/decisions/0011).

    The body runs in the caller's own task, so its `finally` blocks run where it stands, which is
    what cancels the Triton request. The counting of cancellations is that of `asyncio.timeout`: a
    cancellation from elsewhere stays one.
    """

    def __init__(self, scope: Scope) -> None:
        self._lost: asyncio.Future[None] | None = scope["state"].get("connection_lost")
        self._task: asyncio.Task[object] | None = None
        self._gone = False

    def __enter__(self) -> None:
        if self._lost is None:
            return
        if self._lost.done():
            raise RequestCancelled("The client went away.")
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("CancelledOnDisconnect works inside a task only")
        self._cancelling = self._task.cancelling()
        self._lost.add_done_callback(self._cancel)

    def _cancel(self, _: object) -> None:
        if self._task is not None:  # a callback that is on its way already cannot be removed
            self._gone = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._lost is None or task is None:
            return
        self._lost.remove_done_callback(self._cancel)
        if not self._gone:
            return
        ours = task.uncancel() <= self._cancelling
        if ours and isinstance(error, asyncio.CancelledError):
            raise RequestCancelled("The client went away.") from error
