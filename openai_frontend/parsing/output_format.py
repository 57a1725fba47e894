"""How one model's answers are read: what was chosen for it, why, and a parser for each answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openai_frontend.parsing.family import Family
from openai_frontend.parsing.parser import FamilyParser, Parser, ParserPipeline
from openai_frontend.parsing.registry import TEXT, constrained_to_calls, constrained_to_function

Schemas = Mapping[str, Mapping[str, Any]]  # a function's name -> the schema of its arguments

Variables = Mapping[str, Any]  # what the request tells the chat template

# The tools that the request offers, the text of its prompt where that is known, and the variables
MakeParser = Callable[[Schemas, str | None, Variables], Parser]

_NO_SCHEMAS: Schemas = {}
_NO_VARIABLES: Variables = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalParser:
    """A parser that is no family's: one of vLLM's, or a user's own class."""

    name: str  # as the settings name it
    make: MakeParser
    tools: bool  # it recognises calls
    reasoning: bool  # it tells reasoning apart
    special_tokens: bool = True  # it looks for special tokens in the text


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """How one model's answers are read."""

    family: Family  # what the family reads; TEXT where nothing is to be recognised
    because: tuple[str, ...] = ()  # why, one sentence each
    make: ExternalParser | None = None  # what reads the rest

    @property
    def name(self) -> str:
        """What reads the calls and what the reasoning, as the settings name them."""
        if self.make is None:
            return self.family.name
        return self.make.name if self.family is TEXT else f"{self.make.name}+{self.family.name}"

    @property
    def tools(self) -> bool:
        """Whether it can recognise calls."""
        return self.family.tools is not None or (self.make is not None and self.make.tools)

    @property
    def reasoning(self) -> bool:
        """Whether it can tell reasoning apart."""
        if self.make is not None and self.make.reasoning:
            return True
        return self.family.reasoning is not None or bool(self.family.reasoning_summary)

    @property
    def special_tokens(self) -> bool:
        """Whether the engine must keep special tokens in the text."""
        foreign = self.make is not None and self.make.special_tokens
        return foreign or self.family.special_tokens

    def reasoning_open(
        self, prompt: str | None, *, continued: bool = False, variables: Variables = _NO_VARIABLES
    ) -> bool | None:
        """Whether the answer to this prompt begins with reasoning; None where the answer's own
        markers say it, or nobody does. `continued`: the prompt ends with the answer's beginning.
        """
        if self.make is not None and self.make.reasoning:
            return self.make.make(_NO_SCHEMAS, prompt, variables).in_reasoning
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
        """A new answer's parser. `prompt`: the rendered prompt, whose end says whether reasoning
        is open. `continued`: it ends with the answer's beginning. `forced`: the answer, behind its
        reasoning, is nothing but this function's arguments. `any_call`: it is an array of calls.
        """
        family = self.family
        if forced is not None:
            family = constrained_to_function(family, forced)
        elif any_call:
            family = constrained_to_calls(family)
        foreign = self.make
        if foreign is not None and foreign.reasoning:
            make = foreign.make
            return _after_foreign(lambda given: make(given, prompt, variables), family, tools)
        is_open = self.reasoning_open(prompt, continued=continued)
        own = FamilyParser(family, tools, reasoning_open=is_open)
        if foreign is None or family.tools is not None:
            return own  # what the request holds the answer to is the family's, whoever reads else
        last = foreign.make(tools, prompt, variables)
        return last if family.reasoning is None else ParserPipeline(own, last)


def _after_foreign(make: Callable[[Schemas], Parser], family: Family, tools: Schemas) -> Parser:
    """What the request holds the answer to is read by the family, whoever reads else."""
    if family.tools is None:
        return make(tools)
    return ParserPipeline(make(_NO_SCHEMAS), FamilyParser(family, tools))


PLAIN = OutputFormat(family=TEXT)
