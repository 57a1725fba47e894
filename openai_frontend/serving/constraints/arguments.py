"""What one function's arguments must be, in each style in which families write them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from openai_frontend.serving.constraints import formats
from openai_frontend.serving.constraints.formats import Format, Unconstrainable
from openai_frontend.serving.constraints.key_value import keywords, tagged
from openai_frontend.serving.constraints.styles import Style, Tagged


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
