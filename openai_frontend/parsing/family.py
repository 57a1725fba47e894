"""What a row of the table says of a family of models: its call format and its reasoning."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.parsing.buffer import Cursor
from openai_frontend.parsing.event_buffer import EventBuffer
from openai_frontend.parsing.events import IdForm, openai_id


class Syntax(Protocol):
    """Reads calls out of text. Knows nothing of reasoning and of the text around the calls."""

    @property
    def summary(self) -> str:
        """How a call looks, in one line."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that may begin a call anywhere in the text."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Markers that end a call, or calls; none where the value's own bracket does."""

    @property
    def bare_starts(self) -> tuple[str, ...]:
        """Characters that may begin a call where the text begins."""

    @property
    def line_starts(self) -> tuple[str, ...]:
        """The same where a line begins."""

    @property
    def frames_output(self) -> bool:
        """Whether all output is written in this syntax, calls or not."""

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        """Reads from behind the start marker (or from the bare character), through all calls that
        follow one another. Raises `NotToolCall` where what comes is none.
        """


# One of these is in a chat template that shows the model its tools.
TAKES_TOOLS = ("if tools", "in tools", "tools is", "tools |", "tools|")

_PROMPT_END = 256  # characters: a marker and the white space behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The markers around what the model thinks."""

    start: str
    end: str
    starts_inside: bool = False  # the output begins in it, unless the prompt says otherwise
    anywhere: bool = False  # the start is a token of its own, so it counts within text as well
    ended_by_calls: bool = False  # a call within it ends it

    def is_open_after(self, prompt: str) -> bool:
        """Whether the output that follows this prompt begins with reasoning."""
        end = prompt[-_PROMPT_END:].rstrip()
        if end.endswith(self.start.strip()):
            return True
        return self.starts_inside and not end.endswith(self.end.strip())

    def is_open_within(self, prompt: str) -> bool:
        """The same for a prompt that ends within the answer, which the output goes on with."""
        return prompt.rfind(self.start.strip()) > prompt.rfind(self.end.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row: models that write alike."""

    name: str
    models: str  # for the documentation
    reasoning: Reasoning | None = None
    tools: Syntax | None = None
    reasoning_summary: str = ""  # where the syntax of the calls says it and no markers do
    id_form: IdForm = openai_id
    special_tokens: bool = False  # markers are special tokens: they must stay in the text
    endings: tuple[str, ...] = ()  # tokens that end a turn, dropped where they stay in the text
    # Chosen where the chat template has all the texts of one of these ...
    signs: Sequence[tuple[str, ...]] = ()
    without: tuple[str, ...] = ()  # ... and none of these,
    model_types: tuple[str, ...] = ()  # or else by `model_type` in the model's config.json
    aliases: tuple[str, ...] = ()  # other names for it in settings


# The model writes <think> itself, or the prompt ends with it.
THINK = Reasoning(start="<think>", end="</think>")
# The model goes on as if <think> had been written.
THINKING = Reasoning(start="<think>", end="</think>", starts_inside=True)
# The same, and the tokens around calls are not spoken of in thoughts.
THINK_UNTIL_CALLS = Reasoning(start="<think>", end="</think>", ended_by_calls=True)
THINKING_UNTIL_CALLS = Reasoning(
    start="<think>", end="</think>", starts_inside=True, ended_by_calls=True
)
