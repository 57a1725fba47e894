"""Calls whose name stands before their arguments: a marker, the name, a marker, one object.
DeepSeek V3 and V3.1, Kimi K2, Mistral's newer form, Gemma, Llama's `<function=name>`.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from openai_frontend.parsing.cursor import Cursor, NotACall
from openai_frontend.parsing.dialects import JSON, Dialect
from openai_frontend.parsing.identifiers import is_name
from openai_frontend.parsing.markers import markers
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.syntaxes.sections import Section, read_section
from openai_frontend.parsing.values import ValueReader


def plain_name(text: str) -> tuple[str, str | None]:
    """The text is the name; the model gives no id."""
    return text, None


def kimi_name(text: str) -> tuple[str, str | None]:
    """functions.NAME:INDEX is an id that holds the name."""
    name, colon, index = text.rpartition(":")
    if not (colon and index.isdecimal()):
        return text.removeprefix("functions."), None
    return name.removeprefix("functions."), text


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJson:
    """The markers in the order in which they come."""

    summary: str
    section: Section
    name_ends: tuple[str, ...]  # an opening bracket among them is the value's own
    id_mark: str = ""  # after the name: the call's id follows
    fence: tuple[str, str] = ("", "")  # what may stand around the object
    split_name: Callable[[str], tuple[str, str | None]] = plain_name  # -> name, id
    dialect: Dialect = JSON
    listed: JsonCalls | None = None  # the form that begins with a bracket instead of a name
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
        return self.section.all_ends + (self.listed.ends if self.listed else ())

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads a section of calls, or calls without one."""
        if self.listed is not None:
            yield from cursor.skip_space()
            if (yield from cursor.peek()) in ("[", "{"):
                yield from self.listed.read(cursor, output, self.listed.starts[0])
                return
        yield from read_section(self.section, self._call, cursor, output, start)

    def _call(self, cursor: Cursor, output: Output) -> Generator[None, None, None]:
        yield from cursor.skip_space()
        name, identifier = yield from self._name(cursor)
        yield from cursor.skip_space()
        if self.fence[0] and (yield from cursor.accept(self.fence[0])):
            yield from cursor.skip_space()
        has_arguments = (yield from cursor.peek()) == "{"
        if not has_arguments:
            yield from cursor.expect(*self.section.call_ends)
        output.begin(name, identifier)
        cursor.forget()
        yield from self._arguments(cursor, output, has_arguments=has_arguments)
        output.end()
        cursor.record()
        if has_arguments:
            yield from self._end(cursor)

    def _name(self, cursor: Cursor) -> Generator[None, None, tuple[str, str | None]]:
        ends = markers(*self.name_ends, *self.section.call_ends)
        text, end = yield from cursor.until(ends)
        name, identifier = self.split_name(text.strip())
        if not is_name(name):
            raise NotACall
        cursor.take(len(text))
        if self.id_mark and end == self.id_mark:
            cursor.take(len(end))
            text, end = yield from cursor.until(ends)
            identifier = cursor.take(len(text)).strip()
        if end != "{" and end in self.name_ends:
            cursor.take(len(end))
        return name, identifier if is_name(identifier or "") else None

    def _arguments(
        self, cursor: Cursor, output: Output, *, has_arguments: bool
    ) -> Generator[None, None, None]:
        if has_arguments:
            yield from ValueReader(cursor, output.arguments, self.dialect).read()
        else:
            output.arguments("{}")

    def _end(self, cursor: Cursor) -> Generator[None, None, None]:
        yield from cursor.skip_closing_brackets()
        if self.fence[1]:
            yield from cursor.skip_space()
            if (yield from cursor.accept(self.fence[1])):
                cursor.record()
        yield from cursor.skip_space()
        if (yield from cursor.accept(*self.section.call_ends)):
            cursor.record()
