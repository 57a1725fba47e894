"""Events that a parser emits, in order, and the names and ids of tool calls."""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call starts. Calls are numbered from 0 without gaps; id and name come only here."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the call's JSON object. All pieces of an index, joined, are its text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call's arguments end. If not `complete`, the model stopped or made a mistake within them,
    and their text is only the beginning of a JSON object.
    """

    index: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ArgumentsTooLong:
    """The call exceeded the limit on arguments: it has ended, and the parser emits nothing more."""

    index: int


Event = (
    ContentText | ReasoningText | ToolCallStart | ToolCallArguments | ToolCallEnd | ArgumentsTooLong
)


IdForm = Callable[[str, int], str]  # (function name, call index) -> call id

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
    """Whether `text` is a valid function name."""
    return (
        0 < len(text) <= 128
        and text.isprintable()
        and " " not in text
        and _NOT_IN_NAMES.isdisjoint(text)
    )
