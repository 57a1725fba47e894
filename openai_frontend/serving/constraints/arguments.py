"""What one function's arguments must be, in each style in which families write them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.constraints import formats, lark
from openai_frontend.serving.constraints.family_tags import Style, Tagged
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.json_schema import MAX_PARTS, check_schema, relaxed
from openai_frontend.serving.constraints.key_value import keywords, tagged
from openai_frontend.serving.request.tools import CustomFormat, Tools


class Arguments(Protocol):
    """What the arguments of one function must be."""

    def form(self, style: Style) -> Format:
        """Their grammar. Raises Unconstrainable."""


@dataclass(frozen=True, slots=True)
class SchemaArguments:
    """A JSON object of this schema."""

    schema: Mapping[str, Any]

    def form(self, style: Style) -> Format:
        """See `Arguments`."""
        if style == "python":
            return keywords(self.schema)
        if isinstance(style, Tagged):
            return tagged(self.schema, style)
        return formats.json_value(self.schema)


@dataclass(frozen=True, slots=True)
class TextArguments:
    """An object whose one member `input` is a text; the format matches it as JSON spells it."""

    text: Format

    def form(self, style: Style) -> Format:
        """See `Arguments`."""
        if isinstance(style, Tagged):  # there a text is spelled as it is, and a tag may end it
            raise Unconstrainable
        before, after = ('input="', '"') if style == "python" else ('{"input": "', '"}')
        return formats.sequence(formats.const(before), self.text, formats.const(after))


def allowed_functions(tools: Tools) -> dict[str, Arguments]:
    """Those that may be called, in the order of the request. Raises for a schema or a grammar
    that an answer cannot be held to, by its place.
    """
    functions: dict[str, Arguments] = {}
    parts = 0
    for name in tools.functions:
        if name not in tools.allowed:
            continue
        if name in tools.custom:
            place = f"{tools.places[name]}.grammar.definition"
            functions[name] = _of_custom(tools.custom[name], place)
            continue
        parts += check_schema(tools.functions[name], tools.places[name])
        if parts > MAX_PARTS:
            message = f"Invalid '{tools.param}': at most {MAX_PARTS} parts in all their schemas."
            raise InvalidRequest(message, param=tools.param)
        functions[name] = _of_function(name, tools)
    return functions


def _of_function(name: str, tools: Tools) -> SchemaArguments:
    schema = tools.functions[name]
    if schema.get("type", "object") != "object":
        place = f"{tools.places[name]}.type"
        message = f"Invalid schema for '{place}': the arguments of a function are an object."
        raise InvalidRequest(message, param=place)
    whole = schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
    return SchemaArguments(whole if name in tools.strict else relaxed(whole))


def _of_custom(custom: CustomFormat, place: str) -> Arguments:
    """The input is text, and models write calls: so it is a JSON string."""
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
