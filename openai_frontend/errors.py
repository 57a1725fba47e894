"""Every failure a client can be told of. No HTTP imports: a status is only a number here.

GatewayError
├── InvalidRequest            400  the caller's fault; names the field in `param`
│   ├── ContextLengthExceeded 400  prompt (plus answer) longer than the model's context
│   └── RequestTooLarge       413  body over the limit
├── NotAuthenticated          401  no key, or none that is known
├── NotPermitted              403  the key is for something else
├── RateLimited               429  the key's limits are reached; says when to come again
├── ModelNotFound             404  no such model
│   └── ModelHidden           404  or the key may not use it
├── Conflict                  409  not as the server is set, or not at this moment; says why
├── ModelUnavailable          503  the model is known but cannot serve now; says why
│   └── ModelFailed           503  for a reason that its files, Triton or its engine gave
│       └── EngineRestarting  503  its engine died or hung, and is being started again
├── EngineStalled             504  the engine has given no sign of life for too long
├── ServerOverloaded          503  the server cannot take more now
│   ├── QueueFull             503  no place, and none to wait at
│   ├── QueueTimeout          503  waited for a place as long as it may
│   └── ServerDraining        503  the server is about to stop, and begins nothing
├── RequestTimedOut           504  the answer took longer than a request may
├── RequestCancelled          499  the caller went away; never sent, only logged
└── InferenceFailed           500  Triton or the engine failed
"""

from typing import Literal

_LONGEST_NAME_IN_MESSAGES = 128

# Why a request is refused that another time, or elsewhere, would be served: counted by these words.
Rejection = Literal[
    "queue_full", "queue_timeout", "rate_limit", "concurrency", "overloaded", "draining",
    "model_unavailable", "connections",
]  # fmt: skip


class GatewayError(Exception):
    """A failure with OpenAI's four words: `message`, `type`, `param`, `code`; and an HTTP
    `status`.
    """

    status = 500
    type = "server_error"
    code: str | None = None
    retry_after_s: float | None = None  # when to come again, where that is known
    rejection: Rejection | None = None  # None: it is no refusal for load or state
    foreign = False  # True: the message is Triton's, an engine's or a library's, or holds theirs

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(GatewayError):
    """The request cannot be served as it is; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, with the answer's tokens where asked for, does not fit the model's context."""

    code = "context_length_exceeded"


class RequestTooLarge(InvalidRequest):
    """The body is larger than the server takes."""

    status = 413
    code = "request_too_large"


class NotAuthenticated(GatewayError):
    """The request has no key, or one that opens nothing (any more)."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class NotPermitted(GatewayError):
    """The key is known, and is not for this."""

    status = 403
    type = "permission_error"
    code = "insufficient_permissions"


class RateLimited(GatewayError):
    """The key has used up what it may for now."""

    status = 429
    type = "requests"  # or "tokens": what there is too much of
    code = "rate_limit_exceeded"
    rejection: Rejection | None = "rate_limit"

    def __init__(self, message: str, *, type: str = "requests", retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.type = type
        self.retry_after_s = retry_after_s


class ModelNotFound(GatewayError):
    """No model of that name is known."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class ModelHidden(ModelNotFound):
    """The key does not allow the model, if there is one of that name: nobody learns it."""

    def __init__(self, name: str, *, param: str = "model") -> None:
        """`param`: the field that names it."""
        shown = name[:_LONGEST_NAME_IN_MESSAGES]
        message = f"The model '{shown}' does not exist, or the key may not use it."
        super().__init__(message, param=param)


class Conflict(GatewayError):
    """The request is right in itself, and goes against the server's settings or its state."""

    status = 409
    type = "invalid_request_error"
    code = "model_changing"


class NotSupported(GatewayError):
    """A part of a protocol that this server does not have; the message says what instead."""

    status = 501
    type = "invalid_request_error"
    code = "not_supported"


class ModelUnavailable(GatewayError):
    """The model is known but not ready; the message says why."""

    status = 503
    code = "model_unavailable"
    retry_after_s = 5.0
    rejection: Rejection | None = "model_unavailable"


class ModelFailed(ModelUnavailable):
    """The model cannot serve, for a reason that others put into words."""

    foreign = True

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"The model '{name}' cannot serve: {reason}")


class EngineRestarting(ModelFailed):
    """The model's engine died, or hung, and is being started again."""

    code = "engine_restarting"

    def __init__(self, name: str, reason: str, *, retry_after_s: float) -> None:
        super().__init__(name, reason)
        self.retry_after_s = retry_after_s


class EngineStalled(GatewayError):
    """The engine gave no token for longer than it may; the request has been ended in Triton."""

    status = 504
    code = "engine_stalled"


class ServerOverloaded(GatewayError):
    """The server has no room for the request now; try again later."""

    status = 503
    code = "server_overloaded"
    rejection: Rejection | None = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(ServerOverloaded):
    """The model has no place for the request, and its queue none to wait at."""

    code = "queue_full"
    rejection: Rejection | None = "queue_full"


class QueueTimeout(ServerOverloaded):
    """The request has waited for a place in the model for as long as it may."""

    code = "queue_timeout"
    rejection: Rejection | None = "queue_timeout"


class ServerDraining(ServerOverloaded):
    """The server is about to stop: what runs may end, what waits is sent away."""

    code = "server_draining"
    rejection: Rejection | None = "draining"

    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message, retry_after_s=5.0)  # by then the next process may listen


class RequestTimedOut(GatewayError):
    """The answer was not complete when the request's time was over; what ran for it has ended."""

    status = 504
    code = "request_timeout"


class RequestCancelled(GatewayError):
    """The caller went away, or the server ended the request while it stopped."""

    status = 499
    code = "request_cancelled"


class InferenceFailed(GatewayError):
    """Triton or the engine behind it failed while it served the request."""

    status = 500
    code = "inference_failed"
