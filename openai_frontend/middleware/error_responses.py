"""The edge at which every exception becomes an error envelope. Decides no wording."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend.middleware.refusal import send_failure
from openai_frontend.serving.error_reply import log_failure, reply_for


class ErrorResponses:
    """Answers, and logs, what `serving/error_reply.py` says of an exception."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        try:
            await self._app(scope, receive, response.send)
        except (Exception, asyncio.CancelledError) as error:
            log_failure(error, scope["state"]["request_id"])
            if response.started:
                raise
            await send_failure(scope, send, reply_for(error))


class _Response:
    """Remembers whether a response has begun, after which no other can be sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, message: Message) -> None:
        self.started = True
        await self._send(message)
