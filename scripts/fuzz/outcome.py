"""The outcome of parsing: a value, or a refusal whose message is safe to show to a client."""

import re
from collections.abc import Callable
from typing import Any

from openai_frontend.errors import GatewayError

# Addresses and tracebacks reveal details of the process.
_LEAK = re.compile(r"0x[0-9a-f]{8,}|Traceback|site-packages")
_LONGEST_MESSAGE = 8192


def outcome(read: Callable[[], Any], given: bytes = b"") -> tuple[str, Any]:
    """Return the value, or the refusal's status, code, field and message. Other exceptions
    propagate. `given` is the input.
    """
    try:
        return "value", read()
    except GatewayError as error:
        return "refusal", refusal(error, given)


def refusal(error: GatewayError, given: bytes) -> tuple[int, str | None, str | None, str]:
    """Return the refusal's parts. Its status is 4xx, and its message is safe to show: only text
    that the client has `given` may look like a leak.
    """
    assert 400 <= error.status < 500, error
    assert len(error.message) < _LONGEST_MESSAGE
    leaks = [found[0] for found in _LEAK.finditer(error.message)]
    assert all(leak.encode() in given for leak in leaks), error.message
    error.message.encode()  # a lone surrogate could not be sent
    (error.param or "").encode()
    return error.status, error.code, error.param, error.message
