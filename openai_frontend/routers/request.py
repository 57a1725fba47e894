"""What every endpoint needs of a request: its principal, its model, its body and its end."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from fastapi import Request
from starlette.types import Receive, Scope

from openai_frontend.auth.api_keys import Principal
from openai_frontend.auth.keys import REQUIRED_SCOPE
from openai_frontend.errors import RequestCancelled, RequestTimedOut
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.serving.admission.authorized_models import AuthorizedModels, ModelProvider
from openai_frontend.serving.admission.model import ServingModel
from openai_frontend.serving.admission.model_lookup import Task, find_model


def principal_of(request: Request) -> Principal | None:
    """None where the server has no keys, or the address needs none."""
    principal: Principal | None = request.scope["state"].get("principal")
    return principal


def is_anonymous(request: Request) -> bool:
    """Whether the server has keys, and this request came in without one."""
    state = request.scope["state"]
    return "principal" in state and state["principal"] is None


def authorized_models(request: Request, registry: ModelRegistry) -> ModelProvider:
    """The models that this request may name, each at its caller's cost."""
    principal = principal_of(request)
    if principal is None:
        return registry
    return AuthorizedModels(registry, principal, request.scope["state"].get("reservation"))


def may_list_models(request: Request) -> bool:
    """Whether errors may say which models there are."""
    principal = principal_of(request)
    return principal is None or REQUIRED_SCOPE["models"] in principal.key.scopes


async def resolve_model(
    request: Request, registry: ModelRegistry, name: str | None, task: Task
) -> ServingModel:
    """The model that the request names, or the only one for the task, noted for the metrics: a
    name that is served. It may have to be loaded first.
    """
    models = authorized_models(request, registry)
    return record_model(
        request, await find_model(models, name, task, may_list=may_list_models(request))
    )


def record_model(request: Request, model: ServingModel) -> ServingModel:
    """The model of this request, noted for the metrics, and kept until the request's end."""
    state = request.scope["state"]
    state["model"], state["model_name"] = model.name, model.model_name  # asked for; in Triton
    if (held := state.get("model_leases")) is not None:
        model.lease.pin()
        held.append(model.lease)
    return model


async def read_body(receive: Receive) -> bytes:
    """The whole body; most come in one message. Raises where the client goes before it is there."""
    pieces = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("The client went away.")
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


Deadline = tuple[float, Callable[[Literal["total"]], None]]  # the loop's time, and whom to tell


class CancelOnDisconnect:
    """`with CancelOnDisconnect(scope):` ends its body with RequestCancelled, or RequestTimedOut.

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
            raise RuntimeError("CancelOnDisconnect works inside a task only")
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
