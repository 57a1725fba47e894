"""Every error that a client can get, and what to do with exceptions of other code. No HTTP imports:
a status is only a number here.

GatewayError
├── InvalidRequest            400  invalid; names the field in `param`
│   ├── ContextLengthExceeded 400  prompt and output exceed the model's context
│   ├── ConstraintRefused     400  the engine cannot enforce the constraint on the output
│   ├── RegionExists          400  a region of shared memory has that name already
│   └── RequestTooLarge       413  body over the limit
├── NotAuthenticated          401  no valid key
├── NotPermitted              403  the key lacks the scope
├── ApiRestricted             403  the request lacks the header of a restricted group
│   ├── OpenAIApiRestricted   401  of one that --openai-restricted-api names
│   └── RpcRestricted         403  over gRPC
├── RateLimited               429  the key reached a limit; has retry-after
├── ModelNotFound             404  no such model
│   └── ModelHidden           404  or the key must not use it
├── RegionNotFound            404  no such region of shared memory
├── Conflict                  409  not possible with these settings or in this state
├── ModelUnavailable          503  the model exists but cannot serve; says why
│   └── ModelFailed           503  with a reason from its files, Triton or the engine
│       └── EngineRestarting  503  its engine crashed or hung and is restarting
├── EngineStalled             504  the engine produced nothing for too long
├── ServerOverloaded          503  the server is at capacity
│   ├── QueueFull             503  the model's queue is full
│   ├── QueueTimeout          503  waited too long in the queue
│   └── ServerDraining        503  the server is shutting down
├── RequestTimedOut           504  the response took longer than the limit
├── NotSupported              501  a part of a protocol that is not implemented
├── RequestCancelled          499  the client disconnected; only logged
└── InferenceFailed           500  Triton or the engine failed
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Literal

_LONGEST_NAME_IN_MESSAGES = 128

# Reasons of rejections that a retry or another server can avoid; a label of the metrics.
Rejection = Literal[
    "queue_full", "queue_timeout", "rate_limit", "concurrency", "overloaded", "draining",
    "model_unavailable", "connections",
]  # fmt: skip


class GatewayError(Exception):
    """An error with OpenAI's fields `message`, `type`, `param` and `code`, and an HTTP status."""

    status = 500
    type = "server_error"
    code: str | None = None
    retry_after_s: float | None = None  # if known
    rejection: Rejection | None = None  # None: not rejected because of load or state
    foreign = False  # True: the message contains text from Triton, an engine or a library

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(GatewayError):
    """The request is invalid; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt and the requested output tokens exceed the model's context. The numbers of tokens
    are None if only the engine knows them.
    """

    code = "context_length_exceeded"
    prompt_tokens: int | None = None
    context: int | None = None


class ConstraintRefused(InvalidRequest):
    """An engine of this process cannot enforce the request's constraint on the output.

    Only its type says so: the text of any other error may contain a client's words.
    """


class RegionExists(InvalidRequest):
    """A region of shared memory has that name already."""


class RequestTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class NotAuthenticated(GatewayError):
    """The request has no key, or an unknown, expired or revoked one."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotPermitted(GatewayError):
    """The key is valid but lacks the required scope."""

    status = 403
    type = "permission_error"
    code = "insufficient_permissions"


class ApiRestricted(GatewayError):
    """The request lacks the header of its restricted group, or its value. Status and text are
    tritonserver's, here and in the subclasses.
    """

    status = 403
    type = "permission_error"
    code = "api_restricted"
    _TEXT = "This API is restricted, expecting header '{}'"

    def __init__(self, header: str) -> None:
        super().__init__(self._TEXT.format(header))


class OpenAIApiRestricted(ApiRestricted):
    """NVIDIA's OpenAI frontend has another status and text."""

    status = 401
    type = "authentication_error"
    code = "invalid_auth"
    _TEXT = "This API is restricted, expecting header '{}' with valid value"


class RpcRestricted(ApiRestricted):
    """A method of gRPC is in a restricted group."""

    _TEXT = "This protocol is restricted, expecting header '{}'"


class RateLimited(GatewayError):
    """The key reached one of its limits."""

    status = 429
    type = "requests"  # or "tokens": the limit that was reached
    code = "rate_limit_exceeded"
    rejection: Rejection | None = "rate_limit"

    def __init__(self, message: str, *, type: str = "requests", retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.type = type
        self.retry_after_s = retry_after_s


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class ModelHidden(ModelNotFound):
    """The key must not use the model. Does not reveal whether the model exists."""

    def __init__(self, name: str, *, param: str = "model") -> None:
        """`param` is the field that names the model."""
        shown = name[:_LONGEST_NAME_IN_MESSAGES]
        message = f"The model '{shown}' does not exist, or the key may not use it."
        super().__init__(message, param=param)


class RegionNotFound(GatewayError):
    """No region of shared memory has that name. Only KServe's protocol has regions."""

    status = 404
    type = "invalid_request_error"


class Conflict(GatewayError):
    """A valid request that conflicts with the server's settings or state."""

    status = 409
    type = "invalid_request_error"
    code = "model_changing"


class NotSupported(GatewayError):
    """A part of a protocol that is not implemented; the message names an alternative."""

    status = 501
    type = "invalid_request_error"
    code = "not_supported"


class ModelUnavailable(GatewayError):
    """The model exists but is not ready; the message says why."""

    status = 503
    code = "model_unavailable"
    retry_after_s = 5.0
    rejection: Rejection | None = "model_unavailable"


class ModelFailed(ModelUnavailable):
    """The model cannot serve; the reason is text from its files, Triton or the engine."""

    foreign = True

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The model '{name}' cannot serve: {reason}")


class EngineRestarting(ModelFailed):
    """The model's engine crashed or hung and is restarting."""

    code = "engine_restarting"

    def __init__(self, name: str, reason: str, *, retry_after_s: float) -> None:
        super().__init__(name, reason)
        self.retry_after_s = retry_after_s


class EngineStalled(GatewayError):
    """The engine produced no token within its timeout; the request was cancelled in Triton."""

    status = 504
    code = "engine_stalled"


class ServerOverloaded(GatewayError):
    """The server is at capacity."""

    status = 503
    code = "server_overloaded"
    rejection: Rejection | None = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(ServerOverloaded):
    """The model runs its maximum of requests, and its queue is full."""

    code = "queue_full"
    rejection: Rejection | None = "queue_full"


class QueueTimeout(ServerOverloaded):
    """The request waited in the model's queue until its timeout."""

    code = "queue_timeout"
    rejection: Rejection | None = "queue_timeout"


class ServerDraining(ServerOverloaded):
    """The server is shutting down: running requests finish, queued and new ones get this."""

    code = "server_draining"
    rejection: Rejection | None = "draining"

    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message, retry_after_s=5.0)  # by then a new process may listen


class RequestTimedOut(GatewayError):
    """The response was incomplete at the request timeout; its generations were cancelled."""

    status = 504
    code = "request_timeout"


class RequestCancelled(GatewayError):
    """The client disconnected."""

    status = 499
    code = "request_cancelled"


class InferenceFailed(GatewayError):
    """Triton or the engine failed while serving the request."""

    status = 500
    code = "inference_failed"


class MalformedOutput(InferenceFailed):
    """A model's output has not the shape or the numbers that the request needs. The message states
    counts only, so clients get it.
    """

    code = "malformed_model_output"


def did_you_mean(name: str, known: Iterable[str], *, quote: str = "'") -> str:
    """The end of an error about an unknown name: the closest known one; empty if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {quote}{close[0]}{quote}?" if close else ""


class caught:
    """For calls of code that is not this project's, such as engines, parsers and libraries, which
    may raise anything: passes an exception to `report`. The caller continues, unless `report`
    raises an exception of its own.
    """

    __slots__ = ("_report",)

    def __init__(self, report: Callable[[Exception], None]) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._report(error)
        return True


def text_of(error: BaseException) -> str | None:
    """The message of any exception; None if its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  may be a user's
        return None


def describe_exception(error: Exception) -> str:
    """Type and, if readable, message of an exception, on one line."""
    message = " ".join((text_of(error) or "").split())
    return f"{type(error).__name__}: {message}".removesuffix(": ")
