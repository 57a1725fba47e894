"""What a client and the log are told of a failure: the one place that decides it. No HTTP."""

import logging
import math
import re
from asyncio import CancelledError
from dataclasses import dataclass, replace

import orjson

from openai_frontend import request_record
from openai_frontend.errors import (
    GatewayError,
    InvalidRequest,
    Rejection,
    RequestCancelled,
    ServerDraining,
    ServerOverloaded,
)
from schemas.errors import ErrorObject, ErrorResponse

logger = logging.getLogger(__name__)

_GENERIC = "The server had an error while processing your request."
_REFUSED = "The model refuses the request; the reason is for the server's operator to see."
_FAILED = "The model cannot serve now; the reason is for the server's operator to see."

# What a message of Triton's, an engine's or a library's may hold, and no client is to learn: an
# address in memory, a file of the server's, a traceback, an object as Python shows it.
_INSIDES = re.compile(
    r"0x[0-9a-f]{4}|Traceback|File \"|<[\w.]+ object|<class |triton_python_backend_shm"
    r"|(?<![\w.:/#])/(?!(?:properties|items|\$?defs|definitions|v[12])/)[\w.@+-]+/[\w.@+-]",
    re.IGNORECASE,
)
_LONGEST_FOREIGN = 2000  # characters


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A failure as it is sent."""

    status: int
    body: bytes  # the error envelope
    headers: dict[str, str]
    message: str
    rejection: Rejection | None = None  # what it is counted as

    def in_kserve_form(self) -> "ErrorReply":
        """The same under the addresses of KServe's protocol, whose envelope has one member."""
        return replace(self, body=orjson.dumps({"error": self.message}))


def reply_for(error: BaseException) -> ErrorReply:
    """A 500 is told in general words, and so is what shows the insides of the server: the text of
    an exception may name an address or a file.
    """
    if isinstance(error, CancelledError):  # nobody else cancels a request from outside
        error = ServerDraining()
    if isinstance(error, MemoryError):  # others may leave some
        error = ServerOverloaded("The server has no memory for this request now.")
    if not isinstance(error, GatewayError):
        return _failure(500, _GENERIC, GatewayError.type, None, None)
    message = _told(error)
    failure = _failure(error.status, message, error.type, error.param, error.code)
    if error.retry_after_s is not None:
        failure.headers.update(_retry_after(error.retry_after_s))
    return replace(failure, rejection=error.rejection)


def http_error(status: int, message: str, code: str) -> ErrorReply:
    """A request that HTTP itself refuses: no such address, wrong method, wrong kind of body."""
    return _failure(status, message, InvalidRequest.type, None, code)


def log_failure(error: BaseException, request_id: str) -> None:
    """The client is told little of a 500, so the log tells all; a 4xx is the caller's to read."""
    if (record := request_record.current.get()) is not None:
        record.failed(error)
    if isinstance(error, (RequestCancelled, CancelledError)):
        logger.debug("request %s: %s", request_id, error)
    elif not isinstance(error, GatewayError):
        logger.error("request %s failed", request_id, exc_info=error)
    elif _told(error) != error.message:  # its message says all; its traceback is our own layers'
        logger.error("request %s failed: %s", request_id, error)


def _told(error: GatewayError) -> str:
    if error.status == 500:
        return _GENERIC
    if not error.foreign:
        return error.message
    if _INSIDES.search(error.message):
        return _REFUSED if error.status < 500 else _FAILED
    return error.message[:_LONGEST_FOREIGN]


def _failure(
    status: int, message: str, type_: str, param: str | None, code: str | None
) -> ErrorReply:
    error = ErrorObject(message=message, type=type_, param=param, code=code)
    body = ErrorResponse(error=error).model_dump_json().encode()
    return ErrorReply(status, body, _headers(status, code), message)


def _headers(status: int, code: str | None) -> dict[str, str]:
    """OpenAI's clients retry every 5xx unless told not to, which doubles the load of a failure."""
    if status == 503:
        return _retry_after(1.0)
    if status == 401:
        return {"www-authenticate": "Bearer"}
    if status == 413:
        return {"connection": "close"}  # the rest of the body is not read
    return {"x-should-retry": "false"} if status >= 500 or status == 409 else {}


def _retry_after(seconds: float) -> dict[str, str]:
    """The second is for who reads the milliseconds, and wants no more wait than there need be."""
    return {
        "retry-after": str(math.ceil(seconds)),
        "retry-after-ms": str(math.ceil(seconds * 1000)),
    }
