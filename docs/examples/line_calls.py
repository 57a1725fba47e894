"""Example of a parser, for a model that writes a call as a line: `!now {"zone": "CET"}`."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)


class LineCalls:
    """One answer's parser. It never raises, whatever the model writes."""

    special_tokens = False  # does not need them in the text; by default the engine keeps them
    in_reasoning = False  # whether the next text would be reasoning

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any]], *, prompt: str | None, tokenizer: Path
    ) -> None:
        """`tools`: name -> schema of the arguments. `prompt`: the rendered prompt, if its text
        is known. `tokenizer`: the folder of the model's tokenizer.
        """
        self._tools = tools
        self._line = ""  # the incomplete last line
        self._calls = 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """Parse the next piece of the answer. It may be split anywhere."""
        *lines, self._line = (self._line + text).split("\n")
        return [event for line in lines for event in self._read(f"{line}\n")]

    def finish(self) -> list[Event]:
        """Parse the rest. Called once, also for an answer that was not streamed."""
        return self._read(self._line)

    def _read(self, line: str) -> list[Event]:
        name, _, arguments = line.removeprefix("!").strip().partition(" ")
        if not line.startswith("!") or name not in self._tools or not _is_object(arguments):
            return [ContentText(line)] if line else []
        index, self._calls = self._calls, self._calls + 1
        return [
            ToolCallStart(index, f"call_{uuid.uuid4().hex}", name),
            ToolCallArguments(index, arguments),
            ToolCallEnd(index),
        ]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
