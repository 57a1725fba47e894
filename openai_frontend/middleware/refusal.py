"""Sends a Failure as an HTTP response. Decides nothing about it but the envelope."""

from starlette.types import Scope, Send

from openai_frontend.middleware.dialect import is_kserve
from openai_frontend.serving.error_reply import ErrorReply


async def send_failure(scope: Scope, send: Send, failure: ErrorReply) -> None:
    """The whole response: status, headers, the error envelope of the address. What is refused for
    load or state is noted for the metrics.
    """
    if failure.rejection is not None:
        scope["state"]["rejection"] = failure.rejection
    if is_kserve(scope):
        failure = failure.in_kserve_form()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(failure.body)),
        **failure.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": failure.status, "headers": raw})
    await send({"type": "http.response.body", "body": failure.body})
