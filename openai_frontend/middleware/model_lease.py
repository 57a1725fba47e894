"""Where models are loaded on demand: what a request has found stays until its answer is sent."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.models.lease import ModelLease


class RequestModelLeases:
    """Lets go, at the end of each request, of the models that it found."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: list[ModelLease] = []
        scope["state"]["model_leases"] = held
        try:
            await self._app(scope, receive, send)
        finally:
            for lease in held:
                lease.unpin()
