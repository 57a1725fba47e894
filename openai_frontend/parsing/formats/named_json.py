"""Calls with the name before the arguments: a marker, the name, a marker, one object. DeepSeek V3
and V3.1, Kimi K2, Mistral's newer format, Gemma, Llama's `<function=name>`.
"""

import re
from collections.abc import Callable, Container, Generator
from dataclasses import dataclass

from openai_frontend.parsing.buffer import Cursor, NotToolCall, markers
from openai_frontend.parsing.events import EventBuffer, is_name, kimi_id, mistral_id
from openai_frontend.parsing.family import (
    THINK_UNTIL_CALLS,
    Family,
    Reasoning,
    Section,
    read_section,
)
from openai_frontend.parsing.formats.json_calls import JsonCalls
from openai_frontend.parsing.values import JSON, Dialect, ValueReader, bare_dialect

_NAME = re.compile(r"[ \t\r\n]{0,256}([\w./\-]{0,128})")


def plain_name(text: str) -> tuple[str, str | None]:
    """The text is the name; the model gives no id."""
    return text, None


def kimi_name(text: str) -> tuple[str, str | None]:
    """functions.NAME:INDEX is an id that contains the name."""
    name, colon, index = text.rpartition(":")
    if not (colon and index.isdecimal()):
        return text.removeprefix("functions."), None
    return name.removeprefix("functions."), text


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJson:
    """The markers, in order."""

    summary: str
    section: Section
    name_ends: tuple[str, ...]  # an opening bracket here belongs to the value
    id_mark: str = ""  # marker between the name and the call's id
    fence: tuple[str, str] = ("", "")  # optional markers around the object
    split_name: Callable[[str], tuple[str, str | None]] = plain_name  # -> name, id
    dialect: Dialect = JSON
    listed: JsonCalls | None = None  # the variant that starts with a bracket instead of a name
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """Start markers of sections, and of calls without one."""
        return self.section.all_starts

    @property
    def ends(self) -> tuple[str, ...]:
        """End markers of calls, of sections and of the variant."""
        return self.section.all_ends + (self.listed.ends if self.listed else ())

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        if self.listed is not None:
            yield from cursor.skip_space()
            if (yield from cursor.peek()) in ("[", "{"):
                yield from self.listed.read(cursor, output, self.listed.starts[0])
                return
        yield from read_section(self.section, self._call, cursor, output, start)
        while self.id_mark and (yield from self._names_another(cursor, output.schemas)):
            yield from self._call(cursor, output)

    def _names_another(self, cursor: Cursor, tools: Container[str]) -> Generator[None, None, bool]:
        """Whether a tool's name and its end follow: models leave out the marker of a second call.

        Nothing is consumed.
        """
        while True:
            found = _NAME.match(cursor.text, cursor.at)
            name, end = (found.group(1), found.end()) if found else ("", cursor.at)
            rest = cursor.text[end:]
            if name in tools and rest.startswith(self.name_ends):
                return True
            if cursor.ended or not any(each.startswith(rest) for each in self.name_ends):
                return False
            yield

    def _call(self, cursor: Cursor, output: EventBuffer) -> Generator[None, None, None]:
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
            raise NotToolCall
        cursor.take(len(text))
        if self.id_mark and end == self.id_mark:
            cursor.take(len(end))
            text, end = yield from cursor.until(ends)
            identifier = cursor.take(len(text)).strip()
        if end != "{" and end in self.name_ends:
            cursor.take(len(end))
        return name, identifier if is_name(identifier or "") else None

    def _arguments(
        self, cursor: Cursor, output: EventBuffer, *, has_arguments: bool
    ) -> Generator[None, None, None]:
        if has_arguments:
            yield from output.json_arguments(ValueReader(cursor, output.arguments, self.dialect))
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


MISTRAL = Family(
    name="mistral",
    models="Mistral, Mixtral, Ministral, Magistral, Devstral",
    reasoning=Reasoning(start="[THINK]", end="[/THINK]", anywhere=True, ended_by_calls=True),
    tools=NamedJson(
        summary='`[TOOL_CALLS]f[ARGS]{"a": 1}`, '
        'older: `[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]`',
        section=Section(call_starts=("[TOOL_CALLS]",), call_ends=()),
        name_ends=("[ARGS]", "[CALL_ID]", "{"),
        id_mark="[CALL_ID]",
        listed=JsonCalls(summary="", starts=("[TOOL_CALLS]",)),
    ),
    id_form=mistral_id,
    special_tokens=True,
    endings=("</s>",),
    signs=(("[TOOL_CALLS]",), ("[AVAILABLE_TOOLS]",)),
    model_types=("mistral", "mixtral", "mistral3", "pixtral"),
)
KIMI_K2 = Family(
    name="kimi_k2",
    models="Kimi K2, Kimi K2 Thinking",
    reasoning=THINK_UNTIL_CALLS,
    tools=NamedJson(
        summary="`<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|>`',
        section=Section(
            call_starts=("<|tool_call_begin|>",),
            call_ends=("<|tool_call_end|>",),
            starts=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
            ends=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        ),
        name_ends=("<|tool_call_argument_begin|>",),
        split_name=kimi_name,
    ),
    id_form=kimi_id,
    special_tokens=True,
    endings=("<|im_end|>",),
    signs=(("<|tool_calls_section_begin|>",),),
    model_types=("kimi_k2",),
)
GEMMA4 = Family(
    name="gemma4",
    models="Gemma 4",
    reasoning=Reasoning(
        start="<|channel>thought", end="<channel|>", anywhere=True, ended_by_calls=True
    ),
    tools=NamedJson(
        summary='`<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>`',
        section=Section(call_starts=("<|tool_call>call:",), call_ends=("<tool_call|>",)),
        name_ends=("{",),
        dialect=bare_dialect('<|"|>'),
    ),
    special_tokens=True,
    endings=("<turn|>", "<|tool_response>", "<eos>"),
    signs=(("<|tool_call>",),),
    model_types=("gemma4", "gemma4_text"),
    aliases=("gemma",),
)
FUNCTION_GEMMA = Family(
    name="functiongemma",
    models="FunctionGemma",
    tools=NamedJson(
        summary="`<start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>`",
        section=Section(
            call_starts=("<start_function_call>call:",), call_ends=("<end_function_call>",)
        ),
        name_ends=("{",),
        dialect=bare_dialect("<escape>"),
    ),
    special_tokens=True,
    endings=("<end_of_turn>", "<start_function_response>", "<eos>"),
    signs=(("<start_function_call>",), ("<start_function_declaration>",)),
)
LLAMA_FUNCTION_TAG = Family(
    name="llama3_function_tag",
    models="Llama 3.1 prompted to use `<function=...>`, Functionary 3.1",
    tools=NamedJson(
        summary='`<function=f>{"a": 1}</function>`',
        section=Section(call_starts=("<function=",), call_ends=("</function>",)),
        name_ends=(">",),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>"),
    signs=(("<function=", "<|start_header_id|>"),),
    without=("<parameter=",),
)
