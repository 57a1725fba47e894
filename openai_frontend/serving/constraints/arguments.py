"""Constraints on the arguments of functions, in each style in which families write them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints import formats, lark
from openai_frontend.serving.constraints.family_tags import Style, Tagged
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.json_schema import MAX_PARTS, check_schema
from openai_frontend.serving.constraints.key_value import (
    CopyBudget,
    any_keywords,
    any_tagged,
    keywords,
    tagged,
)
from openai_frontend.serving.constraints.schema_reduction import ANY_OBJECT, reduced_arguments
from openai_frontend.serving.request.tools import CustomFormat, Tools


class Arguments(Protocol):
    """The constraint on one function's arguments."""

    def form(self, style: Style) -> Format:
        """The grammar. Raises Unconstrainable if the style cannot express it."""


@dataclass(frozen=True, slots=True)
class SchemaArguments:
    """A JSON object that matches the schema."""

    schema: Mapping[str, Any]
    copies: CopyBudget = field(default_factory=CopyBudget, compare=False)  # the request's

    def places(self, place: str) -> Iterator[tuple[str, Any]]:
        """The schema and its properties, which may have grammars of their own, with their paths."""
        yield place, self.schema
        properties = self.schema.get("properties")
        for name, each in properties.items() if isinstance(properties, Mapping) else ():
            at = f"{place}.properties.{name}"
            yield at, each
            yield from ((at, copy) for copy in self.copies.of(each))

    def form(self, style: Style) -> Format:
        if style == "python":
            return keywords(self.schema, self.copies)
        if isinstance(style, Tagged):
            return tagged(self.schema, style, self.copies)
        return formats.json_value(self.schema)


@dataclass(frozen=True, slots=True)
class TextArguments:
    """An object with the single member `input`; the format matches its text as spelled in JSON."""

    text: Format

    def form(self, style: Style) -> Format:
        if isinstance(style, Tagged):  # text is verbatim there, and a tag could end it
            raise Unconstrainable
        before, after = ('input="', '"') if style == "python" else ('{"input": "', '"}')
        return formats.sequence(formats.const(before), self.text, formats.const(after))


@dataclass(frozen=True, slots=True)
class ReducedArguments(SchemaArguments):
    """Arguments that match the schema if the style can express it, otherwise any arguments."""

    def form(self, style: Style) -> Format:
        if self.schema is ANY_OBJECT:  # tags and keywords would take it as "no arguments"
            return ANY_ARGUMENTS.form(style)
        try:
            return SchemaArguments.form(self, style)
        except Unconstrainable:
            return ANY_ARGUMENTS.form(style)


class AnyArguments:
    """Any arguments that the style can express."""

    def form(self, style: Style) -> Format:
        if style == "python":
            return any_keywords()
        return any_tagged(style) if isinstance(style, Tagged) else formats.json_value(ANY_OBJECT)


ANY_ARGUMENTS = AnyArguments()


def allowed_functions(tools: Tools, steps: Mapping[str, int]) -> dict[str, Arguments]:
    """The functions that may be called, in the request's order. Raises InvalidRequest, with the
    field, for a strict schema or a grammar that cannot constrain output.

    The others are constrained only if a call is required, by their schemas after the step of
    `REDUCTIONS` that `steps` has for their place.
    """
    functions: dict[str, Arguments] = {}
    parts, copies = 0, CopyBudget()
    for name in tools.functions:
        if name not in tools.allowed:
            continue
        if name in tools.custom:
            functions[name] = _of_custom(tools.custom[name], tools.schema_place(name))
        elif name in tools.strict:
            functions[name], more = _of_strict(tools.functions[name], tools.places[name], copies)
            parts += more
            _check_total(parts, tools)
        elif tools.choice != "required":
            functions[name] = ANY_ARGUMENTS
        else:
            step = steps.get(tools.places[name], 1)
            reduced, more = reduced_arguments(tools.functions[name], step)
            kept = parts + more <= MAX_PARTS
            parts += more if kept else 0
            functions[name] = _of_reduced(reduced if kept else ANY_OBJECT, step, copies)
    return functions


def _of_reduced(schema: Mapping[str, Any], step: int, copies: CopyBudget) -> Arguments:
    """The first try may choose another style of calls, which later ones keep."""
    kind = ReducedArguments if step > 1 or schema is ANY_OBJECT else SchemaArguments
    return kind(schema, copies)


def _of_strict(
    schema: Mapping[str, Any], place: str, copies: CopyBudget
) -> tuple[SchemaArguments, int]:
    parts = check_schema(schema, place)
    if schema.get("type", "object") != "object":
        place = f"{place}.type"
        message = f"Invalid schema for '{place}': function arguments must be an object."
        raise InvalidRequest(message, param=place)
    whole = schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
    return SchemaArguments(whole, copies), parts


def _check_total(parts: int, tools: Tools) -> None:
    if parts > MAX_PARTS:
        message = f"Invalid '{tools.param}': the schemas have more than {MAX_PARTS} parts in total."
        raise InvalidRequest(message, param=tools.param)


def _of_custom(custom: CustomFormat, place: str) -> Arguments:
    """The input is a JSON string, since models write calls."""
    if custom.syntax == "lark":
        try:
            return TextArguments(formats.grammar(lark.within_json(custom.definition or "")))
        except Unconstrainable as reason:
            message = f"Invalid '{place}': {reason}."
            raise InvalidRequest(message, param=place) from None
    text = {"type": "string"}
    if custom.syntax == "regex":
        text["pattern"] = custom.definition or ""
    return SchemaArguments(
        {
            "type": "object",
            "properties": {"input": text},
            "required": ["input"],
            "additionalProperties": False,
        }
    )
