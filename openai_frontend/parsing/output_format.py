"""How one model's outputs are parsed, and why. Creates a parser for each output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from openai_frontend.parsing.events import Schemas
from openai_frontend.parsing.family import TEXT, Family
from openai_frontend.parsing.formats.json_calls import ANY_CALL, ForcedArguments
from openai_frontend.parsing.parser import FamilyParser, Parser, ParserPipeline

Variables = Mapping[str, Any]  # the request's chat template variables

# (offered tools, text of the prompt if known, chat template variables) -> parser
MakeParser = Callable[[Schemas, str | None, Variables], Parser]

_NO_SCHEMAS: Schemas = {}
_NO_VARIABLES: Variables = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalParser:
    """One of vLLM's parsers, or a user's own class."""

    name: str  # as in the settings
    make: MakeParser
    tools: bool  # recognises tool calls
    reasoning: bool  # recognises reasoning
    special_tokens: bool = True  # needs special tokens in the text


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """How one model's outputs are parsed."""

    family: Family  # the family's part; TEXT if it parses nothing
    evidence: tuple[str, ...] = ()  # why it was selected, one sentence each
    external: ExternalParser | None = None  # parses the rest

    @property
    def name(self) -> str:
        """The parsers of calls and reasoning, as in the settings."""
        if self.external is None:
            return self.family.name
        name = self.external.name
        return name if self.family is TEXT else f"{name}+{self.family.name}"

    @property
    def tools(self) -> bool:
        """Whether it recognises tool calls."""
        return self.family.tools is not None or (self.external is not None and self.external.tools)

    @property
    def reasoning(self) -> bool:
        """Whether it recognises reasoning."""
        if self.external is not None and self.external.reasoning:
            return True
        return self.family.reasoning is not None or bool(self.family.reasoning_summary)

    @property
    def special_tokens(self) -> bool:
        """Whether the engine must keep special tokens in the text."""
        needed = self.external is not None and self.external.special_tokens
        return needed or self.family.special_tokens

    def reasoning_open(
        self, prompt: str | None, *, continued: bool = False, variables: Variables = _NO_VARIABLES
    ) -> bool | None:
        """Whether the output after this prompt starts within reasoning; None if the output's own
        markers decide, or nothing does.

        `continued`: the prompt ends with the beginning of the assistant's message.
        """
        if self.external is not None and self.external.reasoning:
            return self.external.make(_NO_SCHEMAS, prompt, variables).in_reasoning
        reasoning = self.family.reasoning
        if reasoning is None or prompt is None:
            return None
        return reasoning.is_open_within(prompt) if continued else reasoning.is_open_after(prompt)

    def parser(
        self,
        tools: Schemas,
        *,
        prompt: str | None,
        forced: str | None = None,
        any_call: bool = False,
        continued: bool = False,
        variables: Variables = _NO_VARIABLES,
    ) -> Parser:
        """Create the parser of a new output.

        `prompt`: the rendered prompt, whose end shows whether reasoning is open. `continued`: it
        ends with the beginning of the assistant's message. `forced`: after any reasoning, the
        output is only this function's arguments. `any_call`: it is an array of calls.
        """
        family = self.family
        if forced is not None:
            family = constrained_to_function(family, forced)
        elif any_call:
            family = constrained_to_calls(family)
        external = self.external
        if external is not None and external.reasoning:
            make = external.make
            return _with_external_reasoning(
                lambda given: make(given, prompt, variables), family, tools
            )
        is_open = self.reasoning_open(prompt, continued=continued)
        own = FamilyParser(family, tools, reasoning_open=is_open)
        if external is None or family.tools is not None:
            return own  # the family parses constrained output, even with an external parser
        last = external.make(tools, prompt, variables)
        return last if family.reasoning is None else ParserPipeline(own, last)


def _with_external_reasoning(
    make: Callable[[Schemas], Parser], family: Family, tools: Schemas
) -> Parser:
    """Constrained output is parsed by the family, even with an external parser."""
    if family.tools is None:
        return make(tools)
    return ParserPipeline(make(_NO_SCHEMAS), FamilyParser(family, tools))


def constrained_to_function(family: Family, function: str) -> Family:
    """The family for a request that allows only this function's arguments."""
    return replace(family, tools=ForcedArguments(name=function))


def constrained_to_calls(family: Family) -> Family:
    """The family for a request that allows only an array of calls."""
    return replace(family, tools=ANY_CALL)


PLAIN = OutputFormat(family=TEXT)
