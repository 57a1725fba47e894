"""Translates Triton's error codes to this project's exceptions, and only here."""

import secrets

from openai_frontend import errors
from openai_frontend.runtime.triton_interface import QUEUE_FULL, QUEUE_TIMEOUT
from openai_frontend.triton import _core

UNKNOWN = 0
INTERNAL = 1
NOT_FOUND = 2
INVALID_ARG = 3
UNAVAILABLE = 4
UNSUPPORTED = 5
ALREADY_EXISTS = 6
CANCELLED = 7

# Begins the message of an engine in this process that refuses a constraint. It is random, so no
# other model can send it by repeating a client's words.
CONSTRAINT_REFUSED = f"[{secrets.token_hex(16)}] "

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
    """Return the exception for a Triton error; INTERNAL, UNKNOWN and new codes: InferenceFailed.

    A model can end an error with the words of the core's queue: then only its own client sees
    another 503.
    """
    for words, refusal in _OF_ITS_QUEUE.items():
        if code == UNAVAILABLE and message.endswith(words):
            return refusal(f"The queue of the model's batcher: {words[0].lower()}{words[1:]}.")
    kind = _EXCEPTIONS.get(code, errors.InferenceFailed)
    if CONSTRAINT_REFUSED in message:  # an ensemble's name may precede it
        message, kind = message.replace(CONSTRAINT_REFUSED, ""), errors.ConstraintRefused
    error = kind(message)
    error.foreign = True
    return error


def from_native(error: _core.TritonError) -> errors.GatewayError:
    """Translate the extension's `TritonError(code, message)`."""
    code, message = error.args
    return to_exception(code, message)
