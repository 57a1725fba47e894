"""Formats log records as text or JSON, one line each, with the ids of their request."""

import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import orjson

from openai_frontend.logs.redaction import Redactor, one_line

LogFormat = Literal["text", "json"]

# Records may have our attribute `fields`: a dict of further JSON members
Line = dict[str, Any]


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


# The server starts a task for each request; tasks started by it inherit the variables.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
context: ContextVar[LogContext | None] = ContextVar("request_context", default=None)


class TextFormatter(logging.Formatter):
    """`time level [request] logger: message`.

    Exceptions are indented, so each line without indentation is a record.
    """

    def __init__(self, redaction: Redactor) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        current = request_id.get()
        message = self._redaction.message(record, of_request=current is not None)
        of = "" if current is None or current in message else f" [{current}]"
        exception = self._redaction.exception(record, of_request=current is not None)
        line = f"{self.formatTime(record)} {record.levelname}{of} {record.name}: {message}"
        return line if exception is None else line + _indented(exception.stack)


class JSONFormatter(logging.Formatter):
    """One object per line; docs/tracing-and-logs.md lists its members."""

    def __init__(self, redaction: Redactor, process: str | None = None) -> None:
        """`process`: name of a process other than the gateway's own."""
        super().__init__()
        self._redaction = redaction
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        current, ids = request_id.get(), context.get()
        of_request = current is not None
        line: Line = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction.message(record, of_request=of_request),
            "request_id": current,
        }
        if ids is not None:
            line.update(trace_id=ids.trace_id, span_id=ids.span_id, response_id=ids.response_id)
        line["process"] = self._process
        line.update(getattr(record, "fields", ()))
        exception = self._redaction.exception(record, of_request=of_request)
        if exception is not None:
            line["exception"] = {
                "type": exception.type, "message": exception.message, "stack": exception.stack,
            }  # fmt: skip
        return _dumped({name: value for name, value in line.items() if value is not None})


def make_formatter(
    form: LogFormat, *, exception_texts: bool = False, process: str | None = None
) -> logging.Formatter:
    redaction = Redactor(exception_texts=exception_texts)
    return JSONFormatter(redaction, process) if form == "json" else TextFormatter(redaction)


def _indented(stack: str) -> str:
    return "".join(f"\n    {one_line(line)}" for line in stack.rstrip().split("\n"))


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _dumped(line: Line) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, which UTF-8 cannot encode
        return orjson.dumps(_writable(line), default=str).decode()


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_writable(name): _writable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_writable(each) for each in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
