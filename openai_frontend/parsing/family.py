"""The table row of a model family: its tool-call syntax and markers, its reasoning markers and its
special tokens.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.parsing.buffer import Cursor
from openai_frontend.parsing.events import EventBuffer, IdForm, openai_id


class Syntax(Protocol):
    """Parses tool calls. Knows nothing of reasoning or of the text around the calls."""

    @property
    def summary(self) -> str:
        """An example of a call, in one line."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that can start a call anywhere in the text."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Markers that end a call or a section; empty if the value's own bracket does."""

    @property
    def bare_starts(self) -> tuple[str, ...]:
        """Characters that can start a call at the beginning of the text."""

    @property
    def line_starts(self) -> tuple[str, ...]:
        """Texts that start a call at the beginning of a line."""

    @property
    def frames_output(self) -> bool:
        """Whether all output is written in this syntax, not only calls."""

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        """Parse from after the start marker (or from the bare character) through all consecutive
        calls.

        Raises `NotToolCall` if what follows is not a call.
        """


ReadCall = Callable[[Cursor, EventBuffer], Generator[None, None, None]]


@dataclass(frozen=True, slots=True)
class Section:
    """The markers around each call, and around all of them."""

    call_starts: tuple[str, ...]
    call_ends: tuple[str, ...]
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def all_starts(self) -> tuple[str, ...]:
        """Every marker that may come first."""
        return self.starts + self.call_starts

    @property
    def all_ends(self) -> tuple[str, ...]:
        """Every marker that may come last."""
        return self.call_ends + self.ends


def read_section(
    section: Section, read_call: ReadCall, cursor: Cursor, output: EventBuffer, start: str
) -> Generator[None, None, None]:
    """Reads one call after another, from behind `start`. A section may have none."""
    if start in section.starts:
        yield from cursor.skip_space()
        if (yield from cursor.accept(*section.ends)):
            output.marker()
            cursor.record()
            return
        yield from cursor.expect(*section.call_starts)
    while True:
        yield from read_call(cursor, output)
        yield from cursor.skip_space()
        after = yield from cursor.accept(*section.call_starts, *section.ends)
        if after in section.ends:
            cursor.record()
        if after not in section.call_starts:
            return


# A chat template that shows tools to the model contains one of these.
TAKES_TOOLS = ("if tools", "in tools", "tools is", "tools |", "tools|")

_PROMPT_END = 256  # characters: enough for a marker and white space after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The markers around reasoning."""

    start: str
    end: str
    other_ends: tuple[str, ...] = ()  # markers that end it too, because content follows them
    starts_inside: bool = (
        False  # the output starts within reasoning, unless the prompt shows otherwise
    )
    anywhere: bool = False  # the start is a special token, so it is recognised within text too
    ended_by_calls: bool = False  # a call ends the reasoning

    def is_open_after(self, prompt: str) -> bool:
        """Whether output after this prompt starts with reasoning."""
        end = prompt[-_PROMPT_END:].rstrip()
        if end.endswith(self.start.strip()):
            return True
        return self.starts_inside and not end.endswith(self.end.strip())

    def is_open_within(self, prompt: str) -> bool:
        """Whether reasoning is open in a prompt that ends within the assistant's message, which the
        output continues.
        """
        return prompt.rfind(self.start.strip()) > prompt.rfind(self.end.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models with the same output format."""

    name: str
    models: str  # for the documentation
    reasoning: Reasoning | None = None
    tools: Syntax | None = None
    reasoning_summary: str = ""  # if the call syntax frames reasoning and there are no markers
    id_form: IdForm = openai_id
    special_tokens: bool = (
        False  # the markers are special tokens, so the engine must keep them in the text
    )
    endings: tuple[str, ...] = ()  # tokens that end a turn; dropped from the text
    # Chosen where the chat template has all the texts of one of these ...
    signs: Sequence[tuple[str, ...]] = ()
    without: tuple[str, ...] = ()  # ... and none of these,
    model_types: tuple[str, ...] = ()  # or else by `model_type` in the model's config.json
    aliases: tuple[str, ...] = ()  # other names for it in settings


# The model writes <think> itself, or the prompt ends with it.
THINK = Reasoning(start="<think>", end="</think>")
# The model continues as if <think> had been written.
THINKING = Reasoning(start="<think>", end="</think>", starts_inside=True)
# The same, and a call ends the reasoning: models leave its end out, or write it after the call.
THINK_UNTIL_CALLS = Reasoning(start="<think>", end="</think>", ended_by_calls=True)
THINKING_UNTIL_CALLS = Reasoning(
    start="<think>", end="</think>", starts_inside=True, ended_by_calls=True
)

TEXT = Family(name="text", models="any that only writes text", aliases=("none",))
