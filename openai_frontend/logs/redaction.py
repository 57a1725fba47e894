"""Removes from log lines what they must not contain: API keys, prompts, and control characters.

An exception's text may quote the request that caused it in any form (a repr, token ids, a part).
For exceptions of requests, the log therefore has the type and the traceback, and the text only if
the operator enables it.
"""

import hashlib
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from logging import LogRecord
from typing import Any

from openai_frontend.errors import GatewayError, text_of

# Keys in OpenAI's format, JSON Web Tokens, and any bearer token
_SECRET = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?<=bearer )[^\s'\",]{8,}",
    re.IGNORECASE,
)
# C0, C1, delete and Unicode line ends: they end a line or control a terminal
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Attribute of a logger, which its descendants inherit
_MARKER = "redacts_exceptions"
# asyncio appends the reprs of tasks and callbacks, which quote results, exceptions and arguments
_CALLBACK = re.compile(r"(?<=^Exception in callback )([^(]*)\(.*")
_AT_START = ("EngineCore failed to start",)  # logged by vLLM before there are requests
_MAX_FRAMES = 64  # per exception, the innermost
_MAX_CHAIN = 8  # causes and contexts of an exception
_MAX_CHARACTERS = 64 * 1024  # of a message or an exception's text: models quote their inputs


def redact_exceptions(logger: logging.Logger, *, redact: bool = True) -> None:
    """Mark a logger that logs exceptions of requests outside of the requests' own tasks.

    Its exceptions are then redacted like those logged within a request. The loggers below it
    inherit the mark; `redact=False` takes it off one of them.
    """
    setattr(logger, _MARKER, redact)


# Libraries that run requests in tasks and processes of their own
for _library in ("asyncio", "uvicorn", "vllm"):
    redact_exceptions(logging.getLogger(_library))


class Redactor:
    """Formats messages and exceptions; `exception_texts` is the operator's setting."""

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
            redacted = tuple(self._redacted(each, record, of_request) for each in args)
            text = str(record.msg) % redacted
        if record.exc_info and not self._exception_texts and _is_for_requests(record):
            text = _CALLBACK.sub(r"\1", text.partition("\n")[0])
        return one_line(without_secrets(_cut(text)))

    def _redacted(self, argument: Any, record: LogRecord, of_request: bool) -> Any:
        if isinstance(argument, BaseException):
            return self.text(argument, quotes=of_request or _is_for_requests(record))
        return argument

    def text(self, error: BaseException, *, quotes: bool) -> str:
        """The exception's text, or its length if the text may quote a request."""
        text = text_of(error)
        if text is None:
            text = "(its message cannot be read)"
        if self._exception_texts or not quotes or not text:
            return _cut(text)
        if isinstance(error, GatewayError) and _is_ours(error):
            return _cut(text)
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return f"(text of {len(text)} characters omitted; --log-exception-texts shows it)"

    def exception(self, record: LogRecord, *, of_request: bool) -> "RedactedException | None":
        """The record's exception, or None."""
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
        """Python's format, causes first, with redacted texts and without notes."""
        for at, (each, how) in enumerate(reversed(list(_chain(error)))):
            if at:
                yield f"\n{how}\n\n"
            if each.__traceback__ is not None:
                yield "Traceback (most recent call last):\n"
                yield from traceback.format_tb(each.__traceback__, limit=-_MAX_FRAMES)
            yield f"{_name(each)}: {one_line(self.text(each, quotes=quotes))}\n"


class RedactedException:
    __slots__ = ("message", "stack", "type")

    def __init__(self, *, type: str, message: str, stack: str) -> None:
        self.type = type
        self.message = message
        self.stack = stack


def _cut(text: str) -> str:
    more = len(text) - _MAX_CHARACTERS
    return text if more <= 0 else f"{text[:_MAX_CHARACTERS]} (and {more} more characters)"


def one_line(text: str) -> str:
    r"""Escapes characters that end a line or control a terminal, as in `\x1b`."""
    return _CONTROL.sub(_escaped, text)


def without_secrets(text: str) -> str:
    """Replaces each key by the first four digits of its SHA-256, as in the keys file."""
    return _SECRET.sub(_fingerprint, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _fingerprint(found: re.Match[str]) -> str:
    return f"(key {hashlib.sha256(found[0].encode(errors='replace')).hexdigest()[:4]})"


def _is_ours(error: GatewayError) -> bool:
    """Whether the text is ours or about the model: an engine's text may quote the request."""
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
    """The exception and its causes; each with the sentence that connects it to the next."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_CHAIN:
        seen.add(id(current))
        by_cause = current.__cause__ is not None
        yield current, _CAUSE if by_cause else _CONTEXT
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ if by_cause else context
