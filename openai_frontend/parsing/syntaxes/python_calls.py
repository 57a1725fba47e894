"""Calls as Python writes them: `[f(a=1), g()]`. Read by hand: nothing is ever evaluated."""

import re
from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.arguments import ArgumentsWriter
from openai_frontend.parsing.cursor import MAX_NAME, Cursor, NotACall
from openai_frontend.parsing.dialects import PYTHON
from openai_frontend.parsing.identifiers import is_name
from openai_frontend.parsing.output import Output
from openai_frontend.parsing.syntaxes.json_calls import JsonCalls
from openai_frontend.parsing.values import ValueReader

_NAME = re.compile(r"[\w./\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """A list of calls, or calls one after another. A bare list is one of calls only if it begins
    with an offered tool.
    """

    summary: str
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False
    on_lines: bool = False  # one on each line, without commas
    json_form: JsonCalls | None = None  # some models write it in the same place

    def read(self, cursor: Cursor, output: Output, start: str) -> Generator[None, None, None]:
        """Reads the list."""
        bare = start not in self.starts
        yield from cursor.skip_space()
        first = (yield from cursor.ahead(2)) if self.json_form else ""
        if self.json_form and (first == "[{" or first.startswith("{")):
            yield from self.json_form.read(cursor, output, start)
            return
        listed = bool((yield from cursor.accept("[")))
        while True:
            yield from cursor.skip_space()
            yield from _call(cursor, output, bare=bare)
            yield from cursor.skip_space()
            if not (yield from self._goes_on(cursor, listed=listed)):
                break
        if listed:
            yield from cursor.expect("]")
            cursor.record()
        yield from cursor.skip_space()
        if (yield from cursor.accept(*self.ends)):
            cursor.record()

    def _goes_on(self, cursor: Cursor, *, listed: bool) -> Generator[None, None, bool]:
        comma = yield from cursor.accept(",")
        yield from cursor.skip_space()
        following = yield from cursor.peek()
        if listed:
            return bool(comma) and following != "]"
        return bool(comma) or (self.on_lines and (following == "_" or following.isalpha()))


def _call(cursor: Cursor, output: Output, *, bare: bool) -> Generator[None, None, None]:
    name = yield from cursor.word(_NAME, MAX_NAME)
    if not is_name(name) or (bare and name not in output.schemas):
        raise NotACall
    cursor.take(len(name))
    yield from cursor.expect("(")
    key = yield from _keyword_or_end(cursor)
    output.begin(name)
    cursor.forget()
    writer = ArgumentsWriter(output)
    while key:
        writer.key(key)
        yield from ValueReader(cursor, output.arguments, PYTHON).read()
        yield from cursor.skip_space()
        comma = yield from cursor.expect(",", ")")
        key = (yield from _keyword_or_end(cursor)) if comma == "," else ""
    writer.close()
    cursor.record()


def _keyword_or_end(cursor: Cursor) -> Generator[None, None, str]:
    """The next argument's name, its equals sign taken; "" where the call closes."""
    yield from cursor.skip_space()
    if (yield from cursor.accept(")")):
        return ""
    key = yield from cursor.word(_NAME, MAX_NAME)
    if not is_name(key):
        raise NotACall
    cursor.take(len(key))
    yield from cursor.skip_space()
    yield from cursor.expect("=")
    return key
