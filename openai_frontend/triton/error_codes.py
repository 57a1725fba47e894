"""Triton's error codes as this project's exceptions: the one place where they are to_exception."""

from openai_frontend import errors
from openai_frontend.triton import _core

UNKNOWN = 0
INTERNAL = 1
NOT_FOUND = 2
INVALID_ARG = 3
UNAVAILABLE = 4
UNSUPPORTED = 5
ALREADY_EXISTS = 6
CANCELLED = 7

_EXCEPTIONS: dict[int, type[errors.GatewayError]] = {
    NOT_FOUND: errors.ModelNotFound,
    INVALID_ARG: errors.InvalidRequest,
    UNAVAILABLE: errors.ModelUnavailable,
    UNSUPPORTED: errors.InvalidRequest,
    CANCELLED: errors.RequestCancelled,
}

# Both are UNAVAILABLE, and the core may put the request's id before them
_OF_ITS_QUEUE: dict[str, type[errors.ServerOverloaded]] = {
    "Exceeds maximum queue size": errors.QueueFull,
    "Request timeout expired": errors.QueueTimeout,
}


def to_exception(code: int, message: str) -> errors.GatewayError:
    """Return the exception for a Triton error: INTERNAL, UNKNOWN and what is new become
    InferenceFailed.
    """
    for words, refusal in _OF_ITS_QUEUE.items():
        if code == UNAVAILABLE and message.endswith(words):
            return refusal(f"The queue of the model's batcher: {words[0].lower()}{words[1:]}.")
    error = _EXCEPTIONS.get(code, errors.InferenceFailed)(message)
    error.foreign = True
    return error


def from_native(error: _core.TritonError) -> errors.GatewayError:
    """Translate what the extension raises, `TritonError(code, message)`."""
    code, message = error.args
    return to_exception(code, message)


def describe_exception(error: Exception) -> str:
    """Name an exception of an engine's, with its message where it has one that can be read."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a user's `__str__` may do anything
        message = ""
    return f"{type(error).__name__}: {message}".removesuffix(": ")
