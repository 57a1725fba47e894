"""Which request a line of the log belongs to: set where requests begin, read where lines are made.

The server starts a task for each request, and tasks that it starts inherit what is set here.
"""

from contextvars import ContextVar
from typing import Protocol


class LogContext(Protocol):
    """What a line tells of its request beside the id."""

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None where there is no trace."""

    @property
    def span_id(self) -> str | None:
        """16 of them: of the request's own span."""

    @property
    def response_id(self) -> str | None:
        """The id of the answer, by which Triton and the engine know the request."""


request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
context: ContextVar[LogContext | None] = ContextVar("request_context", default=None)
