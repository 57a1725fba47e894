"""Calls with one element per argument, named after it: MiniMax M3. Elements may contain others; the
schema decides between an object and a list.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from openai_frontend.parsing.argument_schema import Types, argument_types
from openai_frontend.parsing.arguments import (
    ArgumentsWriter,
    Expected,
    LimitedText,
    is_text,
    typed_json,
)
from openai_frontend.parsing.buffer import Cursor, NotToolCall, markers
from openai_frontend.parsing.events import EventBuffer, is_name
from openai_frontend.parsing.family import Family, Reasoning, Section, read_section
from openai_frontend.parsing.schema_check import list_of, mapping_of
from openai_frontend.parsing.schema_document import REFERENCES, SchemaDocument
from openai_frontend.parsing.values import MAX_DEPTH, json_text

_Element: TypeAlias = "str | list[tuple[str, _Element]]"  # its text, or its children by name
_MIXED = "$text"  # member for text beside children
_DEFINITIONS = ("$defs", "definitions")
_COMBINED = ("anyOf", "oneOf", "allOf")
_MAX_ALTERNATIVES = 8  # depth of references and alternatives that are followed


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedTags:
    """The mark before each tag, and the tags around calls."""

    summary: str
    mark: str
    section: Section
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """Start markers of sections, and of calls without one."""
        return self.section.all_starts

    @property
    def ends(self) -> tuple[str, ...]:
        """End markers of calls and of sections."""
        return self.section.all_ends

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        yield from read_section(self.section, self._call, cursor, output, start)

    def _call(self, cursor: Cursor, output: EventBuffer) -> Generator[None, None, None]:
        name, end = yield from cursor.until(markers('">'))
        if not is_name(name):
            raise NotToolCall
        cursor.take(len(name) + len(end))
        has_argument = yield from self._has_argument(cursor)
        output.begin(name)
        cursor.forget()
        writer, schema = ArgumentsWriter(output), output.schemas.get(name, {})
        while has_argument:
            yield from self._argument(cursor, output, writer, schema)
            has_argument = yield from self._has_argument(cursor)
        writer.close()
        cursor.record()

    def _has_argument(self, cursor: Cursor) -> Generator[None, None, bool]:
        """Consumes the start of its tag, or the end of the call, which models leave out."""
        yield from cursor.skip_space()
        if not (yield from cursor.peek()) and not cursor.truncated:
            return False
        section = self.section
        after_call = markers(*section.ends, *section.all_starts)
        if (yield from cursor.is_followed(0, after_call, by_end=False)):
            return False
        opens = f"{self.mark}<"
        return (yield from cursor.expect(opens, *section.call_ends)) == opens

    def _argument(
        self,
        cursor: Cursor,
        output: EventBuffer,
        writer: ArgumentsWriter,
        schema: Mapping[str, Any],
    ) -> Generator[None, None, None]:
        name = yield from self._tag_name(cursor)
        writer.key(name)
        if is_text(argument_types(schema, name)):
            output.arguments('"')
            end = markers(f"{self.mark}</{name}>")
            yield from cursor.stream(end, lambda text: output.arguments(json_text(text)))
            output.arguments('"')
        else:
            collected = LimitedText(output)
            element = yield from self._element(cursor, collected, name, 1)
            output.arguments(_Converter(schema).argument(name, element))

    def _tag_name(self, cursor: Cursor) -> Generator[None, None, str]:
        name, end = yield from cursor.until(markers(">"))
        if not name.strip() or name.startswith("/"):
            raise NotToolCall
        cursor.take(len(name) + len(end))
        return name

    def _element(
        self, cursor: Cursor, collected: LimitedText, name: str, depth: int
    ) -> Generator[None, None, _Element]:
        """Everything up to the end tag."""
        if depth > MAX_DEPTH:
            raise NotToolCall
        texts: list[str] = []
        children: list[tuple[str, _Element]] = []

        def add(text: str) -> None:
            collected.add(text)
            texts.append(text)

        end = f"</{name}>"
        while True:
            yield from cursor.stream(markers(self.mark), add)
            if (yield from cursor.expect(end, "<")) == end:
                return _joined("".join(texts), children)
            child = yield from self._tag_name(cursor)
            value = yield from self._element(cursor, collected, child, depth + 1)
            children.append((child, value))


def _joined(text: str, children: list[tuple[str, _Element]]) -> _Element:
    if not children:
        return text
    return [*children, (_MIXED, text)] if text.strip() else children


class _Converter:
    """Writes elements as JSON, by the schema of the function's parameters."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._document = SchemaDocument(root)
        self._definitions = {key: root[key] for key in _DEFINITIONS if key in root}
        self._types: dict[int, Types] = {}  # items of a list share a schema

    def argument(self, name: str, element: _Element) -> str:
        """The JSON of one argument."""
        return self._json(element, self._member(self._document.root, name))

    def _json(self, element: _Element, schema: object) -> str:
        container = self._container(schema)
        is_list = container is not None and _is_list(container)
        if isinstance(element, str):
            types = self._types_of(schema)
            if container is not None and "string" not in types and not element.strip():
                return "[]" if is_list else "{}"
            return typed_json(element, Expected(types))
        if container is not None and is_list:
            return _list(self._json(child, container.get("items")) for _, child in element)
        members: dict[str, list[str]] = {}
        for name, child in element:
            value = self._json(child, self._member(container, name))
            members.setdefault(name, []).append(value)
        pairs = (
            f'"{json_text(name)}":{values[0] if len(values) == 1 else _list(values)}'
            for name, values in members.items()
        )
        return f"{{{','.join(pairs)}}}"

    def _types_of(self, schema: object) -> Types:
        if id(schema) not in self._types:
            parameters = {**self._definitions, "properties": {"value": schema}}
            self._types[id(schema)] = argument_types(parameters, "value")
        return self._types[id(schema)]

    def _member(self, schema: object, name: str) -> object:
        container = self._container(schema) or {}
        listed = mapping_of(container, "properties")
        return listed[name] if name in listed else container.get("additionalProperties")

    def _container(self, schema: object, depth: int = 0) -> Mapping[str, Any] | None:
        """The first alternative of a schema that describes a list or an object."""
        if not isinstance(schema, Mapping) or depth > _MAX_ALTERNATIVES:
            return None
        if _is_list(schema) or _is_object(schema):
            return schema
        referred = [self._document.target(schema[key]) for key in REFERENCES if key in schema]
        for each in (*referred, *(part for key in _COMBINED for part in list_of(schema, key))):
            found = self._container(each, depth + 1)
            if found is not None:
                return found
        return None


def _is_list(schema: Mapping[str, Any]) -> bool:
    return _states(schema, "array") or ("type" not in schema and "items" in schema)


def _is_object(schema: Mapping[str, Any]) -> bool:
    implied = "properties" in schema or "additionalProperties" in schema
    return _states(schema, "object") or ("type" not in schema and implied)


def _states(schema: Mapping[str, Any], kind: str) -> bool:
    stated = schema.get("type")
    return kind in stated if isinstance(stated, list) else stated == kind


def _list(values: Iterable[str]) -> str:
    return f"[{','.join(values)}]"


_MARK = "]<]minimax[>["
MINIMAX_M3 = Family(
    name="minimax_m3",
    models="MiniMax M3",
    reasoning=Reasoning(start="<mm:think>", end="</mm:think>", ended_by_calls=True),
    tools=NestedTags(
        summary=f'`{_MARK}<tool_call>{_MARK}<invoke name="f">{_MARK}<a>1{_MARK}</a>'
        f"{_MARK}</invoke>{_MARK}</tool_call>`",
        mark=_MARK,
        section=Section(
            call_starts=(f'{_MARK}<invoke name="',),
            call_ends=(f"{_MARK}</invoke>",),
            starts=(f"{_MARK}<tool_call>",),
            ends=(f"{_MARK}</tool_call>",),
        ),
    ),
    endings=("[e~[",),
    signs=((_MARK,),),
    model_types=("minimax_m3", "minimax_m3_vl"),
)
