"""Decides what a client and the log learn about a failure, for every endpoint."""

import logging
import math
import re
from asyncio import CancelledError
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from openai_frontend.errors import (
    GatewayError,
    InvalidRequest,
    MalformedOutput,
    Rejection,
    RequestCancelled,
    ServerDraining,
    ServerOverloaded,
)
from openai_frontend.logs.repeats import REPEATS, Repeats, log_error
from openai_frontend.request_context.context import current_record
from schemas.errors import ErrorObject, ErrorResponse

logger = logging.getLogger(__name__)

_GENERIC = "The server had an error while processing your request."
_REFUSED = "The model refuses the request; the reason is for the server's operator to see."
_FAILED = "The model cannot serve now; the reason is for the server's operator to see."

# Parts of messages of Triton, an engine or a library that clients must not see: a memory address,
# a path on the server, a traceback, the repr of an object.
_SEGMENT = r"[\w.@+-]+"
_START = r"(?<![\w.@+-])"  # of a segment: a search from each of its characters is quadratic
_POINTER = r"(?!(?:properties|items|\$?defs|definitions|v[12])\b)"  # of a schema, or of the API
_MIME_TYPE = r"(?!(?:application|audio|image|text|video)/)"
_PATHS = (
    rf"(?<![\w.:/#])/{_POINTER}{_SEGMENT}/{_SEGMENT}",  # absolute
    rf"['\"`]/{_POINTER}{_SEGMENT}/?['\"`]",
    rf"(?<![\w./])(?:\.\.?|~)/{_SEGMENT}",  # relative
    rf"(?<![\w./#@+-]){_POINTER}(?![\d/.]+\b){_SEGMENT}(?:/{_SEGMENT}){{2}}",
    rf"['\"`]{_MIME_TYPE}{_SEGMENT}/{_SEGMENT}/?['\"`]",
    rf"{_START}{_SEGMENT}/{_SEGMENT}\.(?:bin|engine|gguf|jinja|json|model|npy|onnx|pbtxt|plan|pth?|py|so)\b",
    rf"{_START}{_SEGMENT}/{_SEGMENT}\.(?:safetensors|txt|ya?ml)\b",
    r"(?:file|gs|hf|s3)://",
    r"\b[a-z]:\\",
)
_INSIDES = re.compile(
    r"0x[0-9a-f]{4}|Traceback|File \"|<[\w.]+ object|<class |triton_python_backend_shm|"
    + "|".join(_PATHS),
    re.IGNORECASE,
)
# Web addresses, and the name of a tensor, which the client has chosen
_HARMLESS = re.compile(r"https?://[^\s'\"`]+|\binference input '[^']*'")
_LONGEST_FOREIGN, _LONGEST_INSIDE = 2000, 300  # characters


ErrorForm = Literal["openai", "kserve", "anthropic"]

# Anthropic's types by status; any other status below 500 is an invalid request
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Reasons for which a 503 is Anthropic's 529: the server has no room. The others are of the model
# or of a shutdown
_OVERLOADED = frozenset({"queue_full", "queue_timeout", "overloaded"})


def anthropic_error(reply: "ErrorReply", request_id: str) -> dict[str, Any]:
    """The failure in Anthropic's form. Claude Code takes an error for one of the API's only if it
    has exactly these members. So the message begins with the field, if it does not name it.
    """
    other = "invalid_request_error" if reply.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(reply.status, other)
    param, message = reply.error.param, reply.message
    names_field = param is None or f"'{param}" in message
    error = {"type": kind, "message": message if names_field else f"{param}: {message}"}
    return {"type": "error", "error": error, "request_id": request_id}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error response."""

    status: int
    error: ErrorObject
    body: bytes  # the error in its envelope
    headers: dict[str, str]
    rejection: Rejection | None = None  # its label in metrics

    @property
    def message(self) -> str:
        """For people."""
        return self.error.message

    def in_form(self, form: ErrorForm, request_id: str) -> "ErrorReply":
        """The reply in the envelope of another API."""
        if form == "kserve":
            return replace(self, body=orjson.dumps({"error": self.message}))
        if form == "anthropic":
            status = 529 if self.rejection in _OVERLOADED else self.status
            headers = {**self.headers, "request-id": request_id}
            reply = replace(self, status=status, headers=headers)
            return replace(reply, body=orjson.dumps(anthropic_error(reply, request_id)))
        return self


def reply_for(error: BaseException) -> ErrorReply:
    """The reply for an exception. A 500 gets a generic message, as does one that would reveal the
    server's internals: the text of an exception may have a memory address or a path.
    """
    if isinstance(error, CancelledError):  # only shutdown cancels requests from outside
        error = ServerDraining()
    if isinstance(error, MemoryError):  # other requests may free memory
        error = ServerOverloaded("The server is out of memory for this request. Retry later.")
    if not isinstance(error, GatewayError):
        return _failure(500, _GENERIC, GatewayError.type, None, None)
    message = _public_message(error)
    failure = _failure(error.status, message, error.type, error.param, error.code)
    if error.retry_after_s is not None:
        failure.headers.update(_retry_after(error.retry_after_s))
    return replace(failure, rejection=error.rejection)


def http_error(status: int, message: str, code: str) -> ErrorReply:
    """The reply for an HTTP error: unknown path, wrong method, wrong content type."""
    return _failure(status, message, InvalidRequest.type, None, code)


def log_failure(error: BaseException, request_id: str, repeats: Repeats = REPEATS) -> None:
    """Log what the client does not get, once per reason and minute. A 4xx is complete for its
    client, and not logged.
    """
    if (record := current_record()) is not None:
        record.failed(error)
    if isinstance(error, (RequestCancelled, CancelledError)):
        logger.debug("request %s: %s", request_id, error)
    elif not isinstance(error, GatewayError):
        message = "request %s failed"
        log_error(logger, message, request_id, error=error, traceback=True, repeats=repeats)
    elif (
        error.status == 500 or _public_message(error) != error.message
    ):  # the message is enough: the traceback has only our layers
        message = "request %s failed: %s"
        log_error(logger, message, request_id, error, error=error, repeats=repeats)


def _public_message(error: GatewayError) -> str:
    if error.status == 500 and not isinstance(error, MalformedOutput):
        return _GENERIC
    if not error.foreign:
        return error.message
    # A model may quote megabytes. What is cut needs no search; a path may begin before the cut.
    beginning = error.message[: _LONGEST_FOREIGN + _LONGEST_INSIDE]
    if _INSIDES.search(_HARMLESS.sub("", beginning)):
        return _REFUSED if error.status < 500 else _FAILED
    return error.message[:_LONGEST_FOREIGN]


def _failure(
    status: int, message: str, type_: str, param: str | None, code: str | None
) -> ErrorReply:
    error = ErrorObject(message=message, type=type_, param=param, code=code)
    body = ErrorResponse(error=error).model_dump_json().encode()
    return ErrorReply(status, error, body, _headers(status, code))


def _headers(status: int, code: str | None) -> dict[str, str]:
    """OpenAI's clients retry every 5xx without `x-should-retry`, which doubles the load."""
    if status == 503:
        return _retry_after(1.0)
    if status == 401:
        return {"www-authenticate": "Bearer"}
    if status == 413:
        return {"connection": "close"}  # the rest of the body is not read
    return {"x-should-retry": "false"} if status >= 500 or status == 409 else {}


def _retry_after(seconds: float) -> dict[str, str]:
    """Clients that read milliseconds wait no longer than necessary."""
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
    }
