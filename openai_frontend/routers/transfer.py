"""POST /internal/prefill and GET /internal/health, on a listener for decode servers only; and the
header with which a router chooses a prefill server.
"""

from collections.abc import Awaitable, Callable, Collection

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.errors import InvalidRequest
from openai_frontend.models.prefill_peers import HEALTH_PATH, PREFILL_PATH
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.remote_prefill import chosen_peer
from openai_frontend.routers.request import (
    CancelOnDisconnect,
    principal_of,
    read_body,
    record_model,
)
from openai_frontend.routers.routing import TransferRoute
from openai_frontend.serving.admission.authorized_models import check_allowed
from openai_frontend.serving.prefill import Prefill, model_name
from openai_frontend.serving.request.request_body import BodyReader
from schemas.transfer import PrefillHealth, PrefillRequest


def transfer_router(
    registry: ModelRegistry, prefill: Prefill, is_ready: Callable[[], bool]
) -> APIRouter:
    """`is_ready` is false from the start of a shutdown."""
    router = APIRouter(route_class=TransferRoute)
    bodies = BodyReader(PrefillRequest)

    @router.post(PREFILL_PATH)
    async def create_prefill(request: Request) -> Response:
        """Compute a prompt, unless the decode server disconnects."""
        asked = await bodies.read(await read_body(request.receive))
        name = model_name(asked)
        check_allowed(principal_of(request), name)
        with CancelOnDisconnect(request.scope):
            await registry.ensure_loaded(name)
            model = registry.get(name)
            record_model(request, model)
            answer = await prefill.create(asked, model)
        return Response(answer.model_dump_json(), media_type="application/json")

    @router.get(HEALTH_PATH)
    async def get_health(request: Request) -> Response:
        """200 while prompts are accepted, else 503."""
        ready = is_ready()
        health = PrefillHealth(status="ready" if ready else "not ready")
        status = 200 if ready else 503
        return Response(health.model_dump_json(), status, media_type="application/json")

    return router


HEADER = b"x-prefiller-host-port"  # llm-d's


class ChosenPrefillPeer:
    """Middleware of a decode server: a router may choose among its prefill servers."""

    def __init__(self, app: ASGIApp, *, addresses: Collection[str]) -> None:
        """`addresses`: HOST:PORT of each prefill server."""
        self._app = app
        self._addresses = {address.encode() for address in addresses}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine itself, since most requests name none."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        named = [value for name, value in scope["headers"] if name == HEADER]
        if not named:
            return self._app(scope, receive, send)
        if len(named) > 1 or named[0] not in self._addresses:
            raise _refusal(named[0])
        return self._with_peer(named[0].decode(), scope, receive, send)

    async def _with_peer(self, address: str, scope: Scope, receive: Receive, send: Send) -> None:
        chosen_peer.set(address)
        await self._app(scope, receive, send)


def _refusal(address: bytes) -> InvalidRequest:
    name, shown = HEADER.decode(), address[:64].decode("latin-1")
    message = f"The header {name} names '{shown}', which is not in prefill_peers of this server."
    return InvalidRequest(message, param=name)
