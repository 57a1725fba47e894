"""What the text of an answer turns out to say, in order. No logic."""

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
class ToolCallBegun:
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
class ToolCallEnded:
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
    ContentText
    | ReasoningText
    | ToolCallBegun
    | ToolCallArguments
    | ToolCallEnded
    | ArgumentsTooLong
)
