"""A record of the log as a line: text for people, or one JSON object. Writes nothing."""

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from openai_frontend.logs.context import context, request_id
from openai_frontend.logs.redaction import Redactor, one_line

LogFormat = Literal["text", "json"]

# Of one record; attributes of ours on top of logging's own: `fields` (a dict, for JSON)
Line = dict[str, Any]


class TextFormatter(logging.Formatter):
    """`time level [request] logger: message`; what an exception adds is indented, so that each
    line that begins at the margin is a record's.
    """

    def __init__(self, redaction: Redactor) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """Without a line end."""
        current = request_id.get()
        message = self._redaction.message(record, of_request=current is not None)
        of = "" if current is None or current in message else f" [{current}]"
        told = self._redaction.exception(record, of_request=current is not None)
        line = f"{self.formatTime(record)} {record.levelname}{of} {record.name}: {message}"
        return line if told is None else line + _indented(told.stack)


class JSONFormatter(logging.Formatter):
    """One object a line: docs/tracing-and-logs.md lists its members."""

    def __init__(self, redaction: Redactor, process: str | None = None) -> None:
        """`process` is the name of another process than the gateway's own."""
        super().__init__()
        self._redaction = redaction
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Without a line end."""
        current, known = request_id.get(), context.get()
        of_request = current is not None
        line: Line = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction.message(record, of_request=of_request),
            "request_id": current,
        }
        if known is not None:
            line.update(
                trace_id=known.trace_id, span_id=known.span_id, response_id=known.response_id
            )
        line["process"] = self._process
        line.update(getattr(record, "fields", ()))
        told = self._redaction.exception(record, of_request=of_request)
        if told is not None:
            line["exception"] = {"type": told.type, "message": told.message, "stack": told.stack}
        return _dumped({name: value for name, value in line.items() if value is not None})


def make_formatter(
    form: LogFormat, *, exception_texts: bool = False, process: str | None = None
) -> logging.Formatter:
    """The formatter of one of the two forms."""
    redaction = Redactor(exception_texts=exception_texts)
    return JSONFormatter(redaction, process) if form == "json" else TextFormatter(redaction)


def _indented(stack: str) -> str:
    return "".join(f"\n    {one_line(line)}" for line in stack.rstrip().split("\n"))


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _dumped(line: Line) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, which UTF-8 cannot carry
        return orjson.dumps(_writable(line), default=str).decode()


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_writable(name): _writable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_writable(each) for each in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
