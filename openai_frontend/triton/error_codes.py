"""Translates Triton's error codes to this project's exceptions, and only here; catches what engines
raise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openai_frontend import errors
from openai_frontend.triton import _core
from openai_frontend.triton_interface import QUEUE_FULL, QUEUE_TIMEOUT

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

_OF_ITS_QUEUE: dict[str, type[errors.ServerOverloaded]] = {
    QUEUE_FULL: errors.QueueFull,
    QUEUE_TIMEOUT: errors.QueueTimeout,
}


def to_exception(code: int, message: str) -> errors.GatewayError:
    """Return the exception for a Triton error; INTERNAL, UNKNOWN and new codes: InferenceFailed."""
    for words, refusal in _OF_ITS_QUEUE.items():
        if code == UNAVAILABLE and message.endswith(words):
            return refusal(f"The queue of the model's batcher: {words[0].lower()}{words[1:]}.")
    error = _EXCEPTIONS.get(code, errors.InferenceFailed)(message)
    error.foreign = True
    return error


def from_native(error: _core.TritonError) -> errors.GatewayError:
    """Translate the extension's `TritonError(code, message)`."""
    code, message = error.args
    return to_exception(code, message)


@contextmanager
def caught(report: Callable[[Exception], None]) -> Iterator[None]:
    """For calls to engines: passes an exception to `report`, so that the caller continues."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  users write engines: they may raise anything
        report(error)


def describe_exception(error: Exception) -> str:
    """Type and, if readable, message of an engine's exception."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a user's `__str__` may do anything
        message = ""
    return f"{type(error).__name__}: {message}".removesuffix(": ")
