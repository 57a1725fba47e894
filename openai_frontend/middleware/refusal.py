"""Sends a Failure as an HTTP response. Decides nothing about it."""

from starlette.types import Send

from openai_frontend.serving.failure import Failure


async def send_failure(send: Send, failure: Failure) -> None:
    """The whole response: status, headers, error envelope."""
    headers = {
        "content-type": "application/json",
        "content-length": str(len(failure.body)),
        **failure.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": failure.status, "headers": raw})
    await send({"type": "http.response.body", "body": failure.body})
