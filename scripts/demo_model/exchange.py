"""What every generator of training text returns: a question with its answers and tools."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# A chat message or a tool as the OpenAI API spells it: JSON, so its values are Any.
Message = dict[str, Any]
Tool = dict[str, Any]
# "held_out" draws phrasings and values that "train" never draws.
Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Exchange:
    """A question with its right answers, as one chat request."""

    kind: str
    messages: tuple[Message, ...]
    """Up to the question; the answer is not among them."""
    answers: tuple[str, ...]
    """Right answers, any of them, as the model writes them: a tool call is text here."""
    tools: tuple[Tool, ...] = ()


Generator = Callable[[random.Random, Split], Exchange]


def question(kind: str, text: str, *answers: str) -> Exchange:
    """The plain case: one user message."""
    return Exchange(kind, ({"role": "user", "content": text},), answers)
