"""Keeps a record of each request, and hands it over at the end. Decides nothing of what it is for.

Only where somebody wants it: the access log, traces, or the log's lines in JSON.
"""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_frontend import request_record
from openai_frontend.generation import ChunkedSocket
from openai_frontend.logs import context
from openai_frontend.middleware.direct_writer import DirectWriter
from openai_frontend.middleware.metrics import NOWHERE
from openai_frontend.request_record import RequestRecord
from openai_frontend.tracing import traceparent
from openai_frontend.tracing.tracing import Tracing

# By OpenTelemetry's conventions: a client cannot make names for spans
_METHODS = {
    name: name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
}


class Telemetry:
    """Stands where all of an answer passes, and within the request's id."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tracing: Tracing | None,
        told: Sequence[Callable[[RequestRecord], None]] = (),
    ) -> None:
        """`told` are called with each record, and must not block; they want its bytes too."""
        self._app = app
        self._tracing = tracing
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        record = RequestRecord(state["request_id"], method=_METHODS.get(scope["method"], "_OTHER"))
        if (client := scope.get("client")) is not None:
            record.client = client[0]
        caller = traceparent.read(scope["headers"])
        if self._tracing is not None:
            self._tracing.begin(record, caller)
        elif caller is not None:
            record.trace_id = caller.trace_id
        request_record.current.set(record)
        context.context.set(record)
        answer = _Answer(record, send)
        if self._told:  # these are called for each piece of a stream
            state["send_body"] = _Answer(record, state["send_body"]).send
            if (writer := state["direct_writer"]) is not None:
                state["direct_writer"] = answer.at_once = _Counted(record, writer)
        try:
            await self._app(scope, receive, answer.send)
        finally:
            answer.end()
            self._end(record, state)

    def _end(self, record: RequestRecord, state: dict[str, Any]) -> None:
        record.end_ns = record.now_ns()
        record.route = state.get("route", NOWHERE)
        record.model = state.get("model", "")
        known = state.get("principal")
        record.key = None if known is None else known.key.name
        for tell in self._told:
            tell(record)
        if self._tracing is not None:
            self._tracing.end(record)


class _Answer:
    """Notes the status and counts the body's bytes."""

    def __init__(self, record: RequestRecord, send: Send) -> None:
        self._record = record
        self._send = send
        self.at_once: _Counted | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
        else:
            self._record.body_bytes += len(message.get("body", b""))
        await self._send(message)

    def end(self) -> None:
        if self.at_once is not None and self.at_once.client is not None:
            self._record.body_bytes += self.at_once.client.sent_bytes


class _Counted:
    """The server's short way for pieces of a body, with their bytes counted."""

    def __init__(self, record: RequestRecord, write: DirectWriter) -> None:
        self._record = record
        self._write = write
        self.client: ChunkedSocket | None = None

    def __call__(self, piece: bytes) -> bool:
        written = self._write(piece)
        if written:
            self._record.body_bytes += len(piece)
        return written

    def socket(self) -> ChunkedSocket | None:
        self.client = self._write.socket()
        return self.client

    def drop(self) -> None:
        self._write.drop()
