"""What a row says of a family of models. Data: reading is the parser's, choosing is choice.py's."""

from collections.abc import Sequence
from dataclasses import dataclass

from openai_frontend.parsing.identifiers import IdForm, openai_id
from openai_frontend.parsing.syntax import Syntax

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

    def is_left_open_in(self, prompt: str) -> bool:
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
