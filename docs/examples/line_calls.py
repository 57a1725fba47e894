"""A parser of one's own, for a model that writes a call as a line: `!now {"zone": "CET"}`."""

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

    special_tokens = False  # it needs none in the text; without this line the engine keeps them
    in_reasoning = False  # whether the next text would be reasoning

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any]], *, prompt: str | None, tokenizer: Path
    ) -> None:
        """`tools`: name -> schema of the arguments. `prompt`: the rendered prompt, where its text
        is known. `tokenizer`: the folder of the model's tokenizer.
        """
        self._tools = tools
        self._line = ""  # the beginning of a line, until all of it is there
        self._calls = 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> list[Event]:
        """What the next piece of the answer adds. It may be cut anywhere."""
        *lines, self._line = (self._line + text).split("\n")
        return [event for line in lines for event in self._read(f"{line}\n")]

    def finish(self) -> list[Event]:
        """What was held back. Called once, also for an answer that did not stream."""
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
