"""Context variables that connect log lines with their request.

The server starts a task for each request; tasks started by it inherit the variables.
"""

from contextvars import ContextVar
from typing import Protocol


class LogContext(Protocol):
    """IDs of the request in log lines, besides the request id."""

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None without a trace."""

    @property
    def span_id(self) -> str | None:
        """16 hexadecimal digits: the span of the request."""

    @property
    def response_id(self) -> str | None:
        """The id of the response, which Triton and the engine use too."""


request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
context: ContextVar[LogContext | None] = ContextVar("request_context", default=None)
