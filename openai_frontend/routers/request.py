"""The parts of a request that every endpoint needs: its principal, its model, its body and its
end.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from starlette.types import Receive

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.admission.memory_budget import MemoryBudget, RequestMemory
from openai_frontend.errors import (
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    RequestCancelled,
    RequestTimedOut,
    ServerOverloaded,
)
from openai_frontend.models.model_card import ModelCard
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.tasks import Capability
from openai_frontend.request_context.context import current_request
from openai_frontend.serving.admission.authorized_models import AuthorizedModels, ModelProvider
from openai_frontend.serving.admission.model import Generates, ServingModel
from openai_frontend.serving.admission.model_lookup import (
    check_capability,
    find_model,
    known_card,
    only_name,
)
from openai_frontend.serving.admission.permit import queue_key
from openai_frontend.serving.guard import GuardModel


def authorized_models(registry: ModelRegistry) -> ModelProvider:
    """The models that this request may name."""
    principal = current_request().principal
    return registry if principal is None else AuthorizedModels(registry, principal)


def may_list_models() -> bool:
    """Whether errors may list the models."""
    context = current_request()
    caller = context.principal
    return context.may_list_models and (caller is None or caller.may_open("models"))


async def resolve_model(
    registry: ModelRegistry,
    name: str | None,
    capability: Capability | None,
    *,
    priority: int | None = None,
) -> ServingModel:
    """The model that the request names, or the only one with the capability. Recorded for the
    metrics.

    Loads it first if needed, and does not wait for that longer than the client. Requests wait for
    a load by their key and `priority`, as in the model's queue.
    """
    if registry.uses.demand is None or (name is not None and registry.is_loaded(name)):
        return await resolve_loaded(registry, name, capability)
    with CancelOnDisconnect():  # an alias or an adapter has come here too
        return await _load(registry, name, capability, priority)


async def _load(
    registry: ModelRegistry, name: str | None, capability: Capability | None, priority: int | None
) -> ServingModel:
    models, place = authorized_models(registry), queue_key(current_request(), priority or 0)
    model = await find_model(models, name, capability, may_list=may_list_models, load_as=place)
    record_model(model)
    return model


async def resolve_loaded(
    registry: ModelRegistry, name: str | None, capability: Capability | None = None
) -> ServingModel:
    """The model as `resolve_model`, but one that is not loaded stays so, and the request gets the
    503 of models that are not loaded. For requests that do not run the model.
    """
    models = authorized_models(registry)
    model = await find_model(models, name, capability, may_list=may_list_models, load_as=None)
    record_model(model)
    return model


async def resolve_guarded(
    registry: ModelRegistry, guard: str, name: str | None, *, priority: int | None
) -> tuple[GuardModel, ServingModel]:
    """The guard of a chat, and its model as `resolve_model`. Raises ModelUnavailable if they could
    never be loaded beside each other, and InvalidRequest, before a load or wake, for models of
    other kinds.
    """
    models, place = authorized_models(registry), queue_key(current_request(), priority or 0)
    name = name or only_name(models, "chat", may_list=may_list_models)
    with _naming_guard():
        _check_card(known_card(models, guard, may_list=may_list_models), "moderation")
    _check_card(known_card(models, name, may_list=may_list_models), "chat")
    with CancelOnDisconnect():
        async with registry.loading_together((guard, name), place):
            # The guard first: chats that keep their models must not wait for its load
            named = await _resolve_guard(registry, guard)
            model = await _load(registry, name, "chat", priority)
            await registry.ensure_awake(name, place)
            return named, model


def _check_card(card: ModelCard, capability: Capability) -> None:
    """Nothing is known of the kind of a model that failed, or that requests do not load."""
    if card.ready or card.loads_on_demand:
        check_capability(card.name, card.capabilities, capability)


async def _resolve_guard(registry: ModelRegistry, name: str) -> GuardModel:
    """The model that moderates a request, loaded, awake and kept so; with the reason if it cannot
    serve. Raises ModelNotFound under the name of the field.
    """
    models, place = authorized_models(registry), queue_key(current_request(), 0)
    fails_open = registry.moderation_fails_open(name)
    try:
        with _naming_guard():
            model = await find_model(models, name, None, may_list=may_list_models, load_as=place)
            await registry.ensure_awake(name, place)
    except (ModelUnavailable, ServerOverloaded) as error:
        return GuardModel(name, None, error, fails_open=fails_open)
    model.use.pin()
    current_request().at_end(model.use.unpin)
    return GuardModel(name, model, fails_open=fails_open)


@contextmanager
def _naming_guard() -> Iterator[None]:
    """Names the guard's field in errors about the model."""
    try:
        yield
    except ModelNotFound as error:
        raise ModelNotFound(error.message, param="moderation.model") from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param="moderation.model", code=error.code) from None


def record_model(model: Generates) -> None:
    """Records a request's model for the metrics, and keeps it loaded until the request ends."""
    context = current_request()
    context.model, context.model_name = model.name, model.model_name
    model.use.pin()
    context.at_end(model.use.unpin)


async def read_body(receive: Receive) -> bytes:
    """The complete body; most come in one message. Raises RequestCancelled on disconnect."""
    pieces = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("The client disconnected.")
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def hold_memory(budget: MemoryBudget, deferred: DeferredRelease | None = None) -> RequestMemory:
    """The request's memory in a budget, which is released when the request ends."""
    memory = RequestMemory(budget, deferred)
    current_request().at_end(memory.release)
    return memory


class CancelOnDisconnect:
    """Cancels its `with` block when the client disconnects or the request's deadline passes.

    The block then raises RequestCancelled or RequestTimedOut. Our server signals a disconnect by a
    future, with the request's deadline. Other servers do not, and then the block runs to its end.
    ASGI's disconnect message is not used: a task would have to wait for it, which left the whole
    request to the garbage collector (docs/decisions/0009-request-path.md).

    The block runs in the current task, so that its `finally` blocks cancel the Triton request.
    Cancellations are counted as in `asyncio.timeout`: one from elsewhere stays a cancellation.
    """

    def __init__(self) -> None:
        transport = current_request().transport
        self._lost, self._deadline = transport.connection_lost, transport.deadline
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._reason: RequestCancelled | RequestTimedOut | None = None

    def __enter__(self) -> None:
        if self._lost is None:
            return
        if self._lost.done():
            raise RequestCancelled("The client disconnected.")
        loop = self._lost.get_loop()  # asking for the running one takes a system call
        self._task = asyncio.current_task(loop)
        if self._task is None:
            raise RuntimeError("CancelOnDisconnect needs a running task")
        self._cancelling = self._task.cancelling()
        self._lost.add_done_callback(self._on_lost)
        if self._deadline is not None:
            end_s, _ = self._deadline
            self._timer = loop.call_at(end_s, self._on_time_over)

    def _on_lost(self, _: object) -> None:
        self._cancel(RequestCancelled("The client disconnected."))

    def _on_time_over(self) -> None:
        if self._deadline is not None and self._reason is None:
            self._deadline[1]("total")
        self._cancel(RequestTimedOut("The request timed out before the response was complete."))

    def _cancel(self, reason: RequestCancelled | RequestTimedOut) -> None:
        if self._task is None or self._reason is not None:
            return  # a callback that is already scheduled cannot be removed
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
        try:
            if ours and isinstance(error, asyncio.CancelledError):
                raise reason from error
        finally:
            # Its traceback refers to this frame, which would keep the request until a collection
            del reason, error, traceback
