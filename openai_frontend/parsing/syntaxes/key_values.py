"""Calls whose arguments are spelled one by one between tags: Qwen3-Coder, GLM, MiniMax, and
DeepSeek V3.2. What is no string by its tag or its schema is read when it is whole.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from openai_frontend.parsing.arguments import ArgumentsWriter
from openai_frontend.parsing.cursor import Cursor, NotACall
from openai_frontend.parsing.identifiers import is_name
from openai_frontend.parsing.markers import Markers, markers
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.schema_types import Types, argument_types
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.syntaxes.sections import Section, read_section

_STRING: Types = frozenset(("string",))
_OTHER: Types = frozenset(("number", "boolean", "object", "array", "null"))
# What a tag says of its value's type; None: the schema says it.
PLAIN_TAG: Mapping[str, Types | None] = {'">': None}
TYPED_TAG: Mapping[str, Types | None] = {
    '" string="true">': _STRING,
    '" string="false">': _OTHER,
    '">': None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValues:
    """The tags in the order in which they come."""

    summary: str
    section: Section
    name_ends: tuple[str, ...]
    key_start: str
    value_ends: tuple[str, ...]
    key_ends: Mapping[str, Types | None] = field(default_factory=lambda: PLAIN_TAG)
    value_start: str = ""
    json_form: JsonCalls | None = None  # a JSON object in the same place, which some models write
    value_on_own_lines: bool = False  # one line break on either side is no part of it
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """Sections, and calls without one."""
        return self.section.all_starts

    @property
    def ends(self) -> tuple[str, ...]:
        """Of calls, of sections, and of the other form."""
        return self.section.all_ends + (self.json_form.ends if self.json_form else ())

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads a section of calls, or calls without one."""
        if self.json_form and start in self.json_form.starts:
            yield from cursor.skip_space()
            if (yield from cursor.peek()) == "{":
                yield from self.json_form.read(cursor, output, start)
                return
        yield from read_section(self.section, self._call, cursor, output, start)

    def _call(self, cursor: Cursor, output: Output) -> Generator[None, None, None]:
        name = yield from self._name(cursor)
        yield from cursor.skip_space()
        tag = yield from self._tag(cursor)
        output.begin(name)
        cursor.forget()
        writer = ArgumentsWriter(output)
        while tag == self.key_start:
            yield from self._argument(cursor, writer, output.schemas.get(name))
            yield from cursor.skip_space()
            tag = yield from self._tag(cursor)
        writer.close()
        cursor.record()

    def _tag(self, cursor: Cursor) -> Generator[None, None, str]:
        return cursor.expect(self.key_start, *self.section.call_ends)

    def _name(self, cursor: Cursor) -> Generator[None, None, str]:
        stops = (self.key_start, *self.section.call_ends)
        text, end = yield from cursor.until(markers(*self.name_ends, *stops))
        if not is_name(text.strip()):
            raise NotACall
        cursor.take(len(text) if end in stops else len(text) + len(end))
        return text.strip()

    def _argument(
        self, cursor: Cursor, writer: ArgumentsWriter, schema: Mapping[str, object] | None
    ) -> Generator[None, None, None]:
        key, end = yield from cursor.until(markers(*self.key_ends))
        cursor.take(len(key) + len(end))
        if self.value_start:
            yield from cursor.skip_space()
            yield from cursor.expect(self.value_start)
        if self.value_on_own_lines:
            yield from cursor.accept("\n")
        types = self.key_ends[end]
        known = argument_types(schema, key.strip()) if types is None else types
        writer.key(key.strip())
        yield from writer.text_value(cursor, self._value_ends(), known)

    def _value_ends(self) -> Markers:
        broken = (f"\n{end}" for end in self.value_ends if self.value_on_own_lines)
        return markers(*self.value_ends, *broken)
