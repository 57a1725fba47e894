"""The names that a call may have, and the ids that each family's chat template wants."""

import secrets
import string
from collections.abc import Callable

IdForm = Callable[[str, int], str]  # the function's name and the call's index -> the call's id

_ALPHANUMERIC = string.ascii_letters + string.digits
_NOT_IN_NAMES = frozenset("\"'`<>{}[]()\\,;=|")


def openai_id(_name: str, _index: int) -> str:
    """call_ and 24 characters"""
    return f"call_{secrets.token_hex(12)}"


def mistral_id(_name: str, _index: int) -> str:
    """9 letters and digits"""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


def kimi_id(name: str, index: int) -> str:
    """the model's own, functions.NAME:INDEX"""
    return f"functions.{name}:{index}"


def is_name(text: str) -> bool:
    """Whether a function may be called this."""
    return (
        0 < len(text) <= 128
        and text.isprintable()
        and " " not in text
        and _NOT_IN_NAMES.isdisjoint(text)
    )
