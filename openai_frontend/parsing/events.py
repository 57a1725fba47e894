"""What a parser finds in a model's output, in order; names and ids of calls."""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentText:
    """What the user is to read."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """What the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call, counted from 0 without gaps; its id and name come once, here."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the call's JSON object; all pieces of an index, joined, are its text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call's arguments are over. Where they are not `complete`, the model stopped or went
    astray inside them, and their text is the beginning of a JSON object.
    """

    index: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ArgumentsTooLong:
    """The call passed the limit on arguments: it has ended, and so has the parser."""

    index: int


Event = (
    ContentText | ReasoningText | ToolCallStart | ToolCallArguments | ToolCallEnd | ArgumentsTooLong
)


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
