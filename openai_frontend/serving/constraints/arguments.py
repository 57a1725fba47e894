"""Constraints on the arguments of functions, in each style in which families write them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints import formats, lark
from openai_frontend.serving.constraints.family_tags import Style, Tagged
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.json_schema import MAX_PARTS, check_schema, relaxed
from openai_frontend.serving.constraints.key_value import CopyBudget, keywords, tagged
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


def allowed_functions(tools: Tools) -> dict[str, Arguments]:
    """The functions that may be called, in the request's order. Raises InvalidRequest, with the
    field, for a schema or grammar that cannot constrain output.
    """
    functions: dict[str, Arguments] = {}
    parts, copies = 0, CopyBudget()
    for name in tools.functions:
        if name not in tools.allowed:
            continue
        if name in tools.custom:
            place = f"{tools.places[name]}.grammar.definition"
            functions[name] = _of_custom(tools.custom[name], place)
            continue
        parts += check_schema(tools.functions[name], tools.places[name])
        if parts > MAX_PARTS:
            message = (
                f"Invalid '{tools.param}': the schemas have more than {MAX_PARTS} parts in total."
            )
            raise InvalidRequest(message, param=tools.param)
        functions[name] = _of_function(name, tools, copies)
    return functions


def _of_function(name: str, tools: Tools, copies: CopyBudget) -> SchemaArguments:
    schema = tools.functions[name]
    if schema.get("type", "object") != "object":
        place = f"{tools.places[name]}.type"
        message = f"Invalid schema for '{place}': function arguments must be an object."
        raise InvalidRequest(message, param=place)
    whole = schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
    return SchemaArguments(whole if name in tools.strict else relaxed(whole), copies)


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
