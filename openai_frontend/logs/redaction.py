"""What no line of the log may hold: keys, what a request says, and bytes that forge lines.

An exception's text may quote the request that caused it, in any form (a repr, token ids, a part).
So of an exception in a request the log has its type and its places in the source, which show what
was wrong, and its text only where the operator wants it.
"""

import hashlib
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from logging import LogRecord
from typing import Any

from openai_frontend.errors import GatewayError

# Keys in OpenAI's form, JSON Web Tokens, and whatever stands where a key is sent
_SECRET = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?<=bearer )[^\s'\",]{8,}",
    re.IGNORECASE,
)
# C0 and C1, delete, and the line ends of Unicode: what ends a line or commands a terminal
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Attribute of a logger, which its descendants inherit
_MARKER = "redacts_exceptions"
_AT_START = ("EngineCore failed to start",)  # what vLLM says before there is any request
_MAX_FRAMES = 64  # of one exception: the innermost
_MAX_CHAIN = 8  # exceptions that one was raised from


def redact_exceptions(logger: logging.Logger, *, redact: bool = True) -> None:
    """Mark a logger that logs exceptions of requests outside of the requests' own tasks.

    Its lines then never have an exception's text. The loggers below it inherit the mark;
    `redact=False` takes it off one of them.
    """
    setattr(logger, _MARKER, redact)


# Libraries that run requests in tasks and processes of their own
for _library in ("asyncio", "uvicorn", "vllm"):
    redact_exceptions(logging.getLogger(_library))


class Redactor:
    """Decides by the operator's word whether texts of exceptions are logged."""

    def __init__(self, *, exception_texts: bool = False) -> None:
        self._exception_texts = exception_texts

    def message(self, record: LogRecord, *, of_request: bool) -> str:
        """The record's message on one line."""
        args = record.args
        if not args:
            text = str(record.msg)
        elif isinstance(args, Mapping):
            text = str(record.msg) % args
        else:
            told = tuple(self._told(each, record, of_request) for each in args)
            text = str(record.msg) % told
        return one_line(without_secrets(text))

    def _told(self, argument: Any, record: LogRecord, of_request: bool) -> Any:
        if isinstance(argument, BaseException):
            return self.text(argument, quotes=of_request or _is_for_requests(record))
        return argument

    def text(self, error: BaseException, *, quotes: bool) -> str:
        """What the exception says; a length in its place where that may quote a request."""
        text = _text(error)
        if self._exception_texts or not quotes or not text:
            return text
        if isinstance(error, GatewayError) and _is_ours(error):
            return text
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return f"(its text of {len(text)} characters is left out; --log-exception-texts shows it)"

    def exception(self, record: LogRecord, *, of_request: bool) -> "RedactedException | None":
        """The record's exception; None where there is none."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return None
        quotes = of_request or _is_for_requests(record)
        stack = "".join(self._written(error, quotes))
        return RedactedException(
            type=_name(error),
            message=one_line(without_secrets(self.text(error, quotes=quotes))),
            stack=without_secrets(stack),
        )

    def _written(self, error: BaseException, quotes: bool) -> Iterator[str]:
        """As Python writes it, causes first, but for texts and notes."""
        for at, (each, how) in enumerate(reversed(list(_chain(error)))):
            if at:
                yield f"\n{how}\n\n"
            if each.__traceback__ is not None:
                yield "Traceback (most recent call last):\n"
                yield from traceback.format_tb(each.__traceback__, limit=-_MAX_FRAMES)
            yield f"{_name(each)}: {one_line(self.text(each, quotes=quotes))}\n"


class RedactedException:
    """What a line says of an exception."""

    __slots__ = ("message", "stack", "type")

    def __init__(self, *, type: str, message: str, stack: str) -> None:
        self.type = type
        self.message = message
        self.stack = stack


def one_line(text: str) -> str:
    r"""Without characters that end a line or command a terminal: they are written `\x1b`."""
    return _CONTROL.sub(_escaped, text)


def without_secrets(text: str) -> str:
    """Each key as the first four digits of its SHA-256, by which the keys file knows it too."""
    return _SECRET.sub(_fingerprint, text)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001  an exception of others may fail even at this
        return f"(no text: {type(failure).__name__})"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _fingerprint(found: re.Match[str]) -> str:
    return f"(key {hashlib.sha256(found[0].encode(errors='replace')).hexdigest()[:4]})"


def _is_ours(error: GatewayError) -> bool:
    """Whether its words are ours, or of a model as such: an engine's own may quote the request."""
    return error.status != 500 and not (error.foreign and error.status < 500)


def _is_for_requests(record: LogRecord) -> bool:
    return not str(record.msg).startswith(_AT_START) and _is_marked(record.name)


def _is_marked(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if (mark := getattr(logger, _MARKER, None)) is not None:
            return bool(mark)
        logger = logger.parent
    return False


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The exception, then what it was raised from; each with how it came from the next."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_CHAIN:
        seen.add(id(current))
        by_cause = current.__cause__ is not None
        yield current, _CAUSE if by_cause else _CONTEXT
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ if by_cause else context
