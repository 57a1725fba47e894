"""Releases the models that a request has used, at its end."""

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_frontend.models.triton_model import ModelUse


class RequestModelUses:
    """Middleware that ends a request's uses of models at its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        uses: list[ModelUse] = []
        scope["state"]["model_uses"] = uses
        try:
            await self._app(scope, receive, send)
        finally:
            for use in uses:
                use.unpin()
