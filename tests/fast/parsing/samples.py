"""Sample outputs of each family, and their events in a form that tests can compare.

They are written after the formats that chat templates and model cards give, not recorded.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_frontend.parsing.events import (
    ArgumentsTooLong,
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.output_format import constrained_to_calls, constrained_to_function
from openai_frontend.parsing.parser import FamilyParser, Parser
from openai_frontend.parsing.registry import BY_NAME

FOLDER = Path(__file__).parents[2] / "data" / "parsing"
TOOLS: dict[str, dict[str, Any]] = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
FILES = sorted(path for path in FOLDER.glob("*.json") if path.stem != "tools")
HELD = sorted(FOLDER.glob("held/*.json"))  # of answers that the request held to calls


@dataclass
class Call:
    """One tool call, its fragments joined."""

    id: str
    name: str
    arguments: str = ""
    complete: bool | None = None  # None: it has not ended


@dataclass
class Answer:
    """What all events of an output say together, and the order in which their kinds came."""

    content: str = ""
    reasoning: str = ""
    text: str = ""  # both, in the order in which they came
    calls: list[Call] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    too_long: bool = False


def outputs(path: Path) -> list[dict[str, Any]]:
    """The sample outputs of one file."""
    return list(json.loads(path.read_text(encoding="utf-8"))["outputs"])


def parser_for(family: str, output: dict[str, Any]) -> FamilyParser:
    """A new parser with the tools of the samples, held to calls where the output says so."""
    row = BY_NAME[output.get("family", family)]
    if "forced" in output:
        row = constrained_to_function(row, output["forced"])
    elif output.get("any_call"):
        row = constrained_to_calls(row)
    return FamilyParser(row, TOOLS, reasoning_open=output.get("reasoning_open"), new_id=_counted)


def _counted(name: str, index: int) -> str:
    """Ids that do not differ from one parse to the next."""
    return f"functions.{name}:{index}"


def complete(parser: Parser, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
    """The events of a complete output."""
    return parser.feed(text, token_ids) + parser.finish()


def replay(parser: FamilyParser, pieces: Iterable[str], *, truncated: bool = False) -> Answer:
    """The answer when the output comes in these pieces."""
    events = [event for piece in pieces for event in parser.feed(piece)]
    if truncated:
        parser.truncate()
    return answer(events + parser.finish())


def answer(events: Sequence[Event]) -> Answer:
    """Joins fragments; asserts what holds for every order of events."""
    joined = Answer()
    for event in events:
        kind = type(event).__name__
        if joined.order[-1:] != [kind]:
            joined.order.append(kind)
        _add(joined, event)
    return joined


def _add(joined: Answer, event: Event) -> None:
    match event:
        case ContentText(text):
            assert text
            joined.content += text
            joined.text += text
        case ReasoningText(text):
            assert text
            joined.reasoning += text
            joined.text += text
        case ToolCallStart(index, identifier, name):
            assert index == len(joined.calls)
            assert all(call.complete is not None for call in joined.calls)
            joined.calls.append(Call(identifier, name))
        case ToolCallArguments(index, text):
            assert index == len(joined.calls) - 1
            assert joined.calls[index].complete is None
            assert text
            joined.calls[index].arguments += text
        case ToolCallEnd(index, complete):
            assert index == len(joined.calls) - 1
            assert joined.calls[index].complete is None
            joined.calls[index].complete = complete
        case ArgumentsTooLong(index):
            assert joined.calls[index].complete is False
            joined.too_long = True
