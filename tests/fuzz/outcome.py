"""What came of reading something: a value, or a refusal in words that a client may see."""

import re
from collections.abc import Callable
from typing import Any

from openai_frontend.errors import GatewayError

# Addresses and tracebacks tell a stranger of the process.
_LEAK = re.compile(r"0x[0-9a-f]{8,}|Traceback|site-packages")
_LONGEST_MESSAGE = 8192


def outcome(read: Callable[[], Any], given: bytes = b"") -> tuple[str, Any]:
    """The value, or the refusal's status, code, field and message; any other exception passes.
    `given` is what is read.
    """
    try:
        return "value", read()
    except GatewayError as error:
        return "refusal", refusal(error, given)


def refusal(error: GatewayError, given: bytes) -> tuple[int, str | None, str | None, str]:
    """Its parts; they are the client's fault, and safe to show: what a client has `given` may be
    told to it again, whatever it looks like.
    """
    assert 400 <= error.status < 500, error
    assert len(error.message) < _LONGEST_MESSAGE
    leaks = [found[0] for found in _LEAK.finditer(error.message)]
    assert all(leak.encode() in given for leak in leaks), error.message
    error.message.encode()  # a lone surrogate could not be sent
    (error.param or "").encode()
    return error.status, error.code, error.param, error.message
