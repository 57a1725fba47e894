"""Gives each gRPC call its context, checks its key, counts it, and answers failures with a status.

The counterpart of HTTP's middleware. Knows no message.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from openai_frontend.admission.memory_budget import MemoryBudget, RequestMemory
from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.auth.authorization import Authorizer
from openai_frontend.auth.restrictions import Restriction
from openai_frontend.errors import (
    InvalidRequest,
    RegionExists,
    RequestCancelled,
    RequestTimedOut,
    RpcRestricted,
    ServerDraining,
)
from openai_frontend.kserve.forwarded_headers import ForwardedHeaders
from openai_frontend.kserve.grpc.connections import RpcConnections, address_of
from openai_frontend.kserve.grpc.delivery import Delivery, StreamWrites
from openai_frontend.kserve.grpc.messages import Method
from openai_frontend.kserve.grpc.wire import (
    MalformedRpcMessage,
    check_infer_request,
    check_message,
    check_trace_request,
)
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.middleware.drain import SERVED_WHILE_DRAINING, DrainState
from openai_frontend.middleware.request_id import request_id_of
from openai_frontend.middleware.telemetry import RequestRecords
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.error_reply import log_failure, reply_for

logger = logging.getLogger(__name__)

# gRPC's code for each status of `errors`
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CODES_OF_ERRORS: dict[type[Exception], grpc.StatusCode] = {
    RegionExists: grpc.StatusCode.ALREADY_EXISTS,
    RpcRestricted: grpc.StatusCode.UNAVAILABLE,  # as from tritonserver
}
_METADATA = ("retry-after", "retry-after-ms")  # of the error response's headers
_CHECKS: Mapping[str, Callable[[bytes], None]] = {
    "ModelInferRequest": check_infer_request,
    "TraceSettingRequest": check_trace_request,
}  # of requests with lists in their fields
_LONGEST_DETAILS = 4096  # characters: clients refuse more than 8 KiB of trailing metadata
_CANCELLED = 499  # as HTTP's metrics count a client that disconnects

Handler = Callable[..., Awaitable[Any]]  # of gRPC: iterator over serialized requests; context
Answer = Callable[[Any, RequestContext], Awaitable[Any]]
StreamAnswer = Callable[[Any, "StreamCall"], AsyncGenerator[Any, None]]
Headers = list[tuple[bytes, bytes]]
Work = Callable[[RequestContext, Headers], Awaitable[Any]]  # the whole of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The settings of the same names."""

    request_timeout_s: float = 3600.0  # 0: no timeout
    send_timeout_s: float = 30.0
    message_timeout_s: float = 120.0  # body_timeout_s; from a call's metadata to its only message
    header_forward_pattern: re.Pattern[str] | None = None
    restrictions: Mapping[str, Restriction] = field(default_factory=dict)  # by a method's path


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A call whose requests are a stream."""

    context: RequestContext
    # Check the caller of another request: the key may have expired, and the server may be draining
    admit: Callable[[RequestContext], None]


class RpcCalls:
    """Wraps the functions that answer calls."""

    def __init__(
        self,
        *,
        metrics: GatewayMetrics,
        drain_state: DrainState,
        body_memory: MemoryBudget,
        limits: CallLimits,
        authorizer: Authorizer | None = None,
        records: RequestRecords | None = None,
    ) -> None:
        """`authorizer` is None if no key is needed, `records` if nothing uses them."""
        self._metrics = metrics
        self._drain_state = drain_state
        self._body_memory = body_memory
        self._limits = limits
        self._authorizer = authorizer
        self._records = records
        self._forwarded_headers = ForwardedHeaders(limits.header_forward_pattern)
        self.running: set[asyncio.Task[Any]] = set()
        self.connections = RpcConnections()

    @property
    def draining(self) -> bool:
        """Whether the process ends once the running calls have ended."""
        return self._drain_state.draining

    def unary(self, method: Method, scope: RouteScope, answer: Answer) -> Handler:
        """The handler of a method with one request and one response."""

        async def handle(_requests: Any, call: Any) -> Any:
            async def work(context: RequestContext, _headers: Headers) -> Any:
                data = await self._message(call)
                if context.principal is not None and scope == "inference":
                    await context.begin_limited(context.principal.rate_limiter)
                self.hold(len(data), context)
                return await self.in_time(answer(parsed(method, data), context))

            return await self._serve(method.path, scope, call, work)

        return handle

    def streaming(self, method: Method, scope: RouteScope, answer: StreamAnswer) -> Handler:
        """The handler of a method whose responses are a stream.

        `answer` gets the bytes of the request, or an iterator over those of several. Each of
        several is admitted, counted and timed by itself: the call may last for days.
        """

        async def handle(requests: Any, call: Any) -> None:
            async def work(context: RequestContext, headers: Headers) -> None:
                stream = StreamCall(context, partial(self._admit, scope=scope, headers=headers))
                sent = requests if method.client_streams else await self._message(call)
                async with aclosing(answer(sent, stream)) as responses:
                    await self._write(call, responses)

            await self._serve(method.path, scope, call, work)

        return handle

    async def _write(self, call: Any, responses: AsyncGenerator[bytes, None]) -> None:
        """Raises RequestCancelled if the client reads nothing."""
        seconds = self._limits.send_timeout_s
        writes = StreamWrites(call.write, responses, seconds)
        try:
            await writes.finish()
        except TimeoutError:
            self._metrics.slow_client_disconnected()
            delivery = Delivery(self.connections, call.peer(), seconds, _log_closed)
            writes.task.add_done_callback(delivery.end)
            raise RequestCancelled(f"The client read nothing for {seconds:g} s.") from None

    async def _message(self, call: Any) -> bytes:
        """Read the message of a call that has one. Raises InvalidRequest without it, or
        RequestTimedOut.
        """
        try:
            async with asyncio.timeout(self._limits.message_timeout_s):
                data = await call.read()
        except TimeoutError:
            self._metrics.timed_out("body")
            raise RequestTimedOut("The message did not arrive in time.") from None
        if data is grpc.aio.EOF:
            raise InvalidRequest("The call has no message.")
        return bytes(data)

    def hold(self, length: int, context: RequestContext) -> None:
        """Count a message's bytes until its request has ended. Raises ServerOverloaded."""
        memory = RequestMemory(self._body_memory, context.deferred_release)
        context.at_end(memory.release)
        memory.take(length)

    async def _serve(
        self,
        path: str,
        scope: RouteScope,
        call: Any,
        work: Work,
    ) -> Any:
        """One call, from its metadata to its status."""
        headers = [_header(*each) for each in call.invocation_metadata() or ()]
        context, peer = RequestContext(request_id_of(headers), route=path), call.peer()
        current.set(context)
        if self._records is not None:
            address = address_of(peer)
            host = None if address is None else address[0]
            self._records.begin(context, "RPC", host, headers)
        started_s, status = perf_counter(), _CANCELLED
        self.connections.begin(peer)
        if (task := asyncio.current_task()) is not None:
            self.running.add(task)
        self._metrics.at_work.inc()
        call.set_trailing_metadata((("x-request-id", context.request_id),))
        failure: Exception | None = None
        try:
            self._check_restriction(path, headers)
            self._admit(context, scope, headers)
            response = await work(context, headers)
            status = 200
            return response
        except Exception as error:  # noqa: BLE001  answered with a status, below
            failure = error
            status = reply_for(error).status
        finally:
            if task is not None:
                self.running.discard(task)
            self.connections.end(peer)
            self._end(context, failure, status, perf_counter() - started_s)
            # The response, or at least the status, is given to gRPC next
            delivery = Delivery(
                self.connections, peer, self._limits.send_timeout_s, self._disconnected
            )
            call.add_done_callback(delivery.end)
        # Last: it waits until a client that reads slowly has read what came before
        await _abort(call, context, failure)

    def _check_restriction(self, path: str, headers: Headers) -> None:
        """Once per call: the metadata are those of all its requests. Raises RpcRestricted."""
        restriction = self._limits.restrictions.get(path)
        if restriction is not None and not restriction.allows(headers):
            raise RpcRestricted(restriction.header)

    def _admit(self, context: RequestContext, scope: RouteScope, headers: Headers) -> None:
        """Raises ServerDraining, NotAuthenticated, NotPermitted or InvalidRequest."""
        if self._drain_state.draining and scope not in SERVED_WHILE_DRAINING:
            raise ServerDraining
        if self._authorizer is not None:
            principal = self._authorizer.authorize(headers, scope)
            context.principal, context.is_anonymous = principal, principal is None
        if scope == "inference":
            context.forwarded_headers = self._forwarded_headers.select(headers)

    async def in_time(self, work: Awaitable[Any]) -> Any:
        """Await `work`. Raises RequestTimedOut."""
        timeout_s = self._limits.request_timeout_s or None
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            self._metrics.timed_out("total")
            message = "The request timed out before the response was complete."
            raise RequestTimedOut(message) from None

    def _disconnected(self) -> None:
        self._metrics.slow_client_disconnected()
        _log_closed()

    def _end(
        self, context: RequestContext, failure: Exception | None, status: int, seconds: float
    ) -> None:
        if failure is not None:
            log_failure(failure, context.request_id)
            context.rejection = reply_for(failure).rejection
        context.end()
        metrics, model = self._metrics, context.model_name
        metrics.at_work.dec()
        metrics.answered(context.route, model, status, seconds)
        if context.rejection is not None:
            metrics.rejected(model, context.rejection)
        if self._records is not None and context.record is not None:
            context.record.status = status
            self._records.end(context.record, context)


def _log_closed() -> None:
    logger.info("closed a connection of gRPC whose client does not read its responses")


async def _abort(call: Any, context: RequestContext, failure: Exception) -> None:
    """Ends the call with the status of a failure."""
    reply = reply_for(failure)
    metadata = [("x-request-id", context.request_id)]
    metadata += [(name, reply.headers[name]) for name in _METADATA if name in reply.headers]
    code = _CODES_OF_ERRORS.get(type(failure)) or _CODES.get(reply.status, grpc.StatusCode.INTERNAL)
    await call.abort(code, reply.message[:_LONGEST_DETAILS], tuple(metadata))


def parsed(method: Method, data: bytes) -> Any:
    """The request message. Raises InvalidRequest."""
    name = method.request.DESCRIPTOR.name
    try:
        _CHECKS.get(name, check_message)(data)
        return method.request.FromString(data)
    except (DecodeError, MalformedRpcMessage):
        raise InvalidRequest(f"The message is not a valid {name}.") from None


def _header(name: str, value: str | bytes) -> tuple[bytes, bytes]:
    return name.encode(), value if isinstance(value, bytes) else value.encode()
