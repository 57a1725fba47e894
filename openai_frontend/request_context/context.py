"""The state of one request, in one object that the adapters of a protocol fill.

Middleware does it for HTTP. Everything below the adapters reads the context of the current task and
knows no protocol.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.auth.api_keys import Principal
from openai_frontend.auth.rate_limit import RateLimiter, Reservation
from openai_frontend.errors import Rejection
from openai_frontend.request_context.record import RequestRecord
from openai_frontend.text_relay import StreamWriter

# Time on the event loop's clock, and what to call when it has passed
Deadline = tuple[float, Callable[[Literal["total"]], None]]


class Sink(Protocol):
    """Receives the body of a stream."""

    def open(self, writer: StreamWriter, /) -> None:
        """Lets the writer write: the headers are sent."""

    def drop(self) -> None:
        """Ends the response to a client that reads too slowly."""

    def truncate(self) -> bool:
        """Closes the connection, so that the client sees that its response is incomplete. False if
        only an exception can do that.
        """

    def close(self) -> None:
        """The writer writes no more."""


@dataclass(slots=True, eq=False)
class Transport:
    """The connection of a request, as far as the server tells it."""

    connection_lost: asyncio.Future[None] | None = None  # done once the client has disconnected
    deadline: Deadline | None = None  # of the whole request
    sink: Sink | None = None  # None until the response can be written
    request_id: str = "-"  # for what the server itself logs


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request, from its head to the end of its response."""

    request_id: str
    transport: Transport = field(default_factory=Transport)
    principal: Principal | None = None  # None without a key
    is_anonymous: bool = False  # the server has keys, and the request came without one
    may_list_models: bool = True  # False: the list of models is restricted
    reservation: Reservation | None = None  # of the principal's tokens
    deferred_release: DeferredRelease | None = None  # None: nothing waits for Triton's release
    record: RequestRecord | None = None  # None if nothing uses records
    route: str = ""  # path template, known at the end; empty if there is none
    model: str = ""  # the request's name for its model
    model_name: str = ""  # Triton's
    prefill_peer: str | None = None  # HOST:PORT of the prefill server that a router has chosen
    # Parameters for Triton's model from the request's headers; None if none are forwarded
    forwarded_headers: Mapping[str, str] | None = None
    response_started: bool = False
    rejection: Rejection | None = None  # why the server refused the request, for the metrics
    streamed_bytes: int = 0  # of a body that bypassed the middleware
    _at_end: list[Callable[[], None]] = field(default_factory=list)

    @property
    def tenant(self) -> str:
        """The digest of the caller's key; "" without a key."""
        return "" if self.principal is None else self.principal.key.digest

    async def begin_limited(self, rate_limiter: RateLimiter) -> None:
        """Count the request on its key's limits, until it has ended and Triton has released it.

        Raises RateLimited.
        """
        await rate_limiter.begin()
        reservation = self.reservation = Reservation(rate_limiter)
        self.deferred_release = reservation.deferred_release
        self.at_end(partial(reservation.when_released, rate_limiter.end))
        self.at_end(partial(reservation.when_released, reservation.release))

    def at_end(self, call: Callable[[], None]) -> None:
        """Call `call` when the request has ended, after all that was added later."""
        self._at_end.append(call)

    def end(self) -> None:
        """The response is complete or given up. Called once, by the outermost adapter."""
        self.transport.sink = None  # it refers to the connection, which refers to the transport
        while self._at_end:
            self._at_end.pop()()

    def counting_inputs(self) -> DeferredRelease:
        """The deferred release, for an owner that counts the request's inputs in memory."""
        if self.deferred_release is None:
            self.deferred_release = DeferredRelease()
        self.deferred_release.counts_inputs = True
        return self.deferred_release


# The server starts a task for each request; tasks started by it share the context.
current: ContextVar[RequestContext] = ContextVar("request")

# The context of the current task's request. Raises LookupError outside of requests. Without a
# function of its own: each request asks for it seven times.
current_request: Callable[[], RequestContext] = current.get


def current_record() -> RequestRecord | None:
    """The record of the current task's request; None if nothing uses records."""
    context = current.get(None)
    return None if context is None else context.record
