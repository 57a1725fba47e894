"""Releases the models that a request has used, at its end."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.models.triton_model import ModelLease


class RequestModelLeases:
    """Middleware that releases a request's model leases at its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        leases: list[ModelLease] = []
        scope["state"]["model_leases"] = leases
        try:
            await self._app(scope, receive, send)
        finally:
            for lease in leases:
                lease.unpin()
