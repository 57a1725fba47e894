"""Formats log records as text or JSON, one line each, with the ids of their request."""

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from openai_frontend.logs.redaction import Redactor, one_line
from openai_frontend.request_context.context import current

LogFormat = Literal["text", "json"]

# Records may have our attribute `fields`: a dict of further JSON members
Line = dict[str, Any]


class TextFormatter(logging.Formatter):
    """`time level [request] logger: message`.

    Exceptions are indented, so each line without indentation is a record.
    """

    def __init__(self, redaction: Redactor) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        request = current.get(None)
        message = self._redaction.message(record, of_request=request is not None)
        of = "" if request is None or request.request_id in message else f" [{request.request_id}]"
        exception = self._redaction.exception(record, of_request=request is not None)
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
        request = current.get(None)
        of_request = request is not None
        line: Line = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction.message(record, of_request=of_request),
            "request_id": None if request is None else request.request_id,
        }
        if request is not None and (ids := request.record) is not None:
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
