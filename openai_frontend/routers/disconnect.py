"""Notices that a client has gone, or its time is over, while its answer is still being made."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from starlette.types import Scope

from openai_frontend.errors import RequestCancelled, RequestTimedOut

Deadline = tuple[float, Callable[[Literal["total"]], None]]  # the loop's time, and whom to tell


class CancelledOnDisconnect:
    """`with CancelledOnDisconnect(scope):` ends its body with RequestCancelled, or RequestTimedOut.

    The server's word for a lost connection is a future, in the scope's state; other servers give
    none, and then the body runs to its end. Not ASGI's message: a task would have to wait for it,
    and it left the whole request to the garbage collector (docs/decisions/0011).

    When the time of a request is over is in the scope's state too.

    The body runs in the caller's own task, so its `finally` blocks run where it stands, which is
    what cancels the Triton request. The counting of cancellations is that of `asyncio.timeout`: a
    cancellation from elsewhere stays one.
    """

    def __init__(self, scope: Scope) -> None:
        self._lost: asyncio.Future[None] | None = scope["state"].get("connection_lost")
        self._deadline: Deadline | None = scope["state"].get("deadline")
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._reason: RequestCancelled | RequestTimedOut | None = None

    def __enter__(self) -> None:
        if self._lost is None:
            return
        if self._lost.done():
            raise RequestCancelled("The client went away.")
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("CancelledOnDisconnect works inside a task only")
        self._cancelling = self._task.cancelling()
        self._lost.add_done_callback(self._on_lost)
        if self._deadline is not None:
            end_s, _ = self._deadline
            self._timer = asyncio.get_running_loop().call_at(end_s, self._on_time_over)

    def _on_lost(self, _: object) -> None:
        self._cancel(RequestCancelled("The client went away."))

    def _on_time_over(self) -> None:
        if self._deadline is not None and self._reason is None:
            self._deadline[1]("total")
        self._cancel(RequestTimedOut("The answer was not complete in the time of a request."))

    def _cancel(self, reason: RequestCancelled | RequestTimedOut) -> None:
        if self._task is None or self._reason is not None:
            return  # a callback that is on its way already cannot be removed
        self._reason = reason
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
        self._lost.remove_done_callback(self._on_lost)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reason, self._reason = self._reason, None
        if reason is None:
            return
        ours = task.uncancel() <= self._cancelling
        if ours and isinstance(error, asyncio.CancelledError):
            raise reason from error
