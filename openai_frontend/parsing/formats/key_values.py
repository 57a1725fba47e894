"""Calls with one tag per argument: Qwen3-Coder, GLM, MiniMax, and DeepSeek V3.2. Values that are
not strings by their tag or schema are converted once they are complete.
"""

import re
from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from openai_frontend.parsing.argument_schema import ArgumentSchema, Types
from openai_frontend.parsing.arguments import ArgumentsWriter, Expected
from openai_frontend.parsing.buffer import MAX_NAME, Cursor, NotToolCall, ValueEnds, markers
from openai_frontend.parsing.events import EventBuffer, is_name
from openai_frontend.parsing.family import (
    THINK_UNTIL_CALLS,
    THINKING,
    Family,
    Reasoning,
    Section,
    read_section,
)
from openai_frontend.parsing.formats.json_calls import JsonCalls

_RECIPIENT = re.compile(r"[\w.\-]*")
_STRING: Types = frozenset(("string",))
_OTHER: Types = frozenset(("number", "boolean", "object", "array", "null"))
# End of a key tag -> the value's types; None: the schema decides.
PLAIN_TAG: Mapping[str, Types | None] = {'">': None}
TYPED_TAG: Mapping[str, Types | None] = {
    '" string="true">': _STRING,
    '" string="false">': _OTHER,
    '">': None,
}
# Kimi K3 states the exact type
_K3_TAG: Mapping[str, Types | None] = {
    '" type="string"<|sep|>': _STRING,
    **{f'" type="{kind}"<|sep|>': _OTHER for kind in sorted(_OTHER)},
    '"<|sep|>': None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValues:
    """The tags, in order."""

    summary: str
    section: Section
    name_ends: tuple[str, ...]
    key_start: str
    value_ends: tuple[str, ...]
    key_ends: Mapping[str, Types | None] = field(default_factory=lambda: PLAIN_TAG)
    value_start: str = ""
    attributes_end: str = ""  # the start tag of a call has more attributes after the name
    header: tuple[str, str] = ("", "")  # around the recipient of a message, before its section
    json_form: JsonCalls | None = None  # JSON variant of the same call, which some models write
    value_on_own_lines: bool = False  # one line break on either side does not belong to it
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """Start markers of messages, or of sections and of calls without one."""
        return self.header[:1] if self.header[0] else self.section.all_starts

    @property
    def ends(self) -> tuple[str, ...]:
        """End markers of calls, of sections and of the JSON variant."""
        return self.section.all_ends + (self.json_form.ends if self.json_form else ())

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        if self.json_form and start in self.json_form.starts:
            yield from cursor.skip_space()
            if (yield from cursor.peek()) == "{":
                yield from self.json_form.read(cursor, output, start)
                return
        if self.header[0]:
            yield from self._recipient(cursor)
            start = yield from cursor.expect(*self.section.all_starts)
        yield from read_section(self.section, self._call, cursor, output, start)

    def _recipient(self, cursor: Cursor) -> Generator[None, None, None]:
        """The call repeats the name. The text is held back only while it can be a header."""
        name = yield from cursor.word(_RECIPIENT, MAX_NAME)
        if not is_name(name):
            raise NotToolCall
        cursor.take(len(name))
        yield from cursor.expect(self.header[1])
        yield from cursor.skip_space()

    def _call(self, cursor: Cursor, output: EventBuffer) -> Generator[None, None, None]:
        name = _offered((yield from self._name(cursor)), output.schemas)
        yield from cursor.skip_space()
        tag = yield from self._next_tag(cursor)
        output.begin(name)
        cursor.forget()
        writer, schema = ArgumentsWriter(output), ArgumentSchema(output.schemas.get(name))
        while tag == self.key_start:
            yield from self._argument(cursor, writer, schema)
            yield from cursor.skip_space()
            tag = yield from self._next_tag(cursor)
        writer.close()
        cursor.record()

    def _next_tag(self, cursor: Cursor) -> Generator[None, None, str]:
        """The tag of another argument, or the end; "" if the model left the end of the call out."""
        section = self.section
        if not (yield from cursor.peek()) and not cursor.truncated:
            return ""
        after_call = markers(*section.ends, *section.all_starts)
        if (yield from cursor.is_followed(0, after_call, by_end=False)):
            return ""
        return (yield from cursor.expect(self.key_start, *section.call_ends))

    def _name(self, cursor: Cursor) -> Generator[None, None, str]:
        stops = (self.key_start, *self.section.call_ends)
        text, end = yield from cursor.until(markers(*self.name_ends, *stops))
        if not is_name(text.strip()):
            raise NotToolCall
        cursor.take(len(text) if end in stops else len(text) + len(end))
        if self.attributes_end and end not in stops:
            more, end = yield from cursor.until(markers(self.attributes_end))
            cursor.take(len(more) + len(end))
        return text.strip()

    def _argument(
        self, cursor: Cursor, writer: ArgumentsWriter, schema: ArgumentSchema
    ) -> Generator[None, None, None]:
        key, end = yield from cursor.until(markers(*self.key_ends))
        cursor.take(len(key) + len(end))
        if self.value_start:
            yield from cursor.skip_space()
            yield from cursor.expect(self.value_start)
        if self.value_on_own_lines:
            yield from cursor.accept("\n")
        name, types = self._key(key), self.key_ends[end]
        expected = (
            Expected(schema.types(name), partial(schema.allows, name))
            if types is None
            else Expected(types)
        )
        writer.key(name)
        yield from writer.text_value(cursor, self._value_ends(), expected)

    def _key(self, text: str) -> str:
        """The argument's name, without the escapes of attributes."""
        escaped = self.attributes_end and "&" in text
        return text.replace("&quot;", '"').replace("&amp;", "&") if escaped else text.strip()

    def _value_ends(self) -> ValueEnds:
        section = self.section
        of_value, of_call = self._closing(self.value_ends), self._closing(section.call_ends)
        return ValueEnds(
            of_value=markers(*of_value),
            after_value=markers(self.key_start, *section.all_ends, *section.all_starts),
            of_either=markers(*of_value, *of_call),
            after_call=markers(*section.ends, *section.all_starts),
            starts=markers(*section.all_starts),
        )

    def _closing(self, ends: tuple[str, ...]) -> tuple[str, ...]:
        return ends + tuple(f"\n{end}" for end in ends if self.value_on_own_lines)


def _offered(name: str, tools: Container[str]) -> str:
    """A tool without a namespace may be written `f.f`, as if its name were one."""
    head, dot, tail = name.partition(".")
    return head if name not in tools and dot and head == tail and head in tools else name


_CHATML_ENDINGS = ("<|im_end|>", "<|endoftext|>")


def _json(tag: str) -> JsonCalls:
    return JsonCalls(summary="", starts=(f"<{tag}>",), ends=(f"</{tag}>",))


def _function_tags(section: str) -> KeyValues:
    return KeyValues(
        summary=f"`<{section}><function=f><parameter=a>1</parameter></function></{section}>`",
        section=Section(
            call_starts=("<function=",),
            call_ends=("</function>",),
            starts=(f"<{section}>",),
            ends=(f"</{section}>",),
        ),
        name_ends=(">",),
        key_start="<parameter=",
        key_ends={">": None},
        value_ends=("</parameter>",),
        value_on_own_lines=True,
        json_form=_json(section),
    )


def _argument_tags(prefix: str) -> KeyValues:
    call, key, value = f"{prefix}tool_call", f"{prefix}arg_key", f"{prefix}arg_value"
    return KeyValues(
        summary=f"`<{call}>f<{key}>a</{key}><{value}>1</{value}></{call}>`",
        section=Section(call_starts=(f"<{call}>",), call_ends=(f"</{call}>",)),
        name_ends=("\n",),
        key_start=f"<{key}>",
        key_ends={f"</{key}>": None},
        value_start=f"<{value}>",
        value_ends=(f"</{value}>",),
        json_form=_json(call),
    )


def _sectioned_argument_tags(suffix: str, name_end: str = "") -> KeyValues:
    """Hunyuan's. A checkpoint may add a suffix to all of its tags."""

    def tags(name: str) -> tuple[str, str]:
        return f"<{name}{suffix}>", f"</{name}{suffix}>"

    section, call, key, value = map(tags, ("tool_calls", "tool_call", "arg_key", "arg_value"))
    argument = f"{key[0]}a{key[1]}{value[0]}1{value[1]}"
    return KeyValues(
        summary=f"`{section[0]}{call[0]}f{name_end}{argument}{call[1]}{section[1]}`",
        section=Section(
            call_starts=call[:1], call_ends=call[1:], starts=section[:1], ends=section[1:]
        ),
        name_ends=(name_end,) if name_end else (),
        key_start=key[0],
        key_ends={key[1]: None},
        value_start=value[0],
        value_ends=value[1:],
    )


QWEN3_XML_CALLS = _function_tags("tool_call")
QWEN3_CODER = Family(
    name="qwen3_coder",
    models="Qwen3-Coder",
    tools=QWEN3_XML_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<function=", "<parameter="),),
    without=("<think>", "</think>"),
)
QWEN3_XML = Family(
    name="qwen3_xml",
    models="Qwen3.5, Qwen3-Next, Nemotron 3, Granite 4.2, Step 3.5",
    reasoning=THINK_UNTIL_CALLS,
    tools=QWEN3_XML_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<function=", "<parameter="),),
    without=("<seed:tool_call>",),
    model_types=("qwen3_5", "qwen3_5_moe", "qwen3_next", "step3p5"),
    aliases=("nemotron_v3", "granite_thinking", "step3p5"),
)
MIMO = replace(
    QWEN3_XML,
    name="mimo",
    models="MiMo, if its name is set: line breaks around a value belong to it",
    tools=replace(QWEN3_XML_CALLS, value_on_own_lines=False),
    signs=(),
    model_types=("mimo", "mimo_v2_flash"),
    aliases=(),
)
SEED_OSS = Family(
    name="seed_oss",
    models="Seed-OSS",
    reasoning=Reasoning(start="<seed:think>", end="</seed:think>"),
    tools=_function_tags("seed:tool_call"),
    special_tokens=True,
    endings=("<seed:eos>",),
    signs=(("<seed:tool_call>",),),
    model_types=("seed_oss",),
)
GLM45 = Family(
    name="glm45",
    models="GLM-4.5, 4.6 and 4.7, GLM-5, Ling 3",
    reasoning=THINK_UNTIL_CALLS,
    tools=_argument_tags(""),
    endings=("<|user|>", "<|observation|>", "<|endoftext|>"),
    signs=(("<arg_key>", "<arg_value>"),),
    model_types=("glm4_moe", "glm4v_moe", "glm4_moe_lite"),
    aliases=("glm46", "glm47", "ling3"),
)
LONGCAT = Family(
    name="longcat",
    models="LongCat-Flash",
    reasoning=Reasoning(start="<longcat_think>", end="</longcat_think>"),
    tools=_argument_tags("longcat_"),
    special_tokens=True,
    endings=("</longcat_s>",),
    signs=(("<longcat_tool_call>",),),
    model_types=("longcat_flash",),
)
MINIMAX_M2 = Family(
    name="minimax_m2",
    models="MiniMax M2 and M2.1",
    reasoning=THINKING,
    tools=KeyValues(
        summary='`<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter>'
        "</invoke></minimax:tool_call>`",
        section=Section(
            call_starts=('<invoke name="',),
            call_ends=("</invoke>",),
            starts=("<minimax:tool_call>",),
            ends=("</minimax:tool_call>",),
        ),
        name_ends=('">',),
        key_start='<parameter name="',
        value_ends=("</parameter>",),
    ),
    special_tokens=True,
    endings=("[e~[",),
    signs=(("<minimax:tool_call>",),),
    model_types=("minimax_m2",),
)
HY_V3 = Family(
    name="hy_v3",
    models="Hy3",
    reasoning=THINK_UNTIL_CALLS,
    tools=_sectioned_argument_tags("", name_end="<tool_sep>"),
    special_tokens=True,
    signs=(("<tool_sep>", "<arg_key>"), ("<tool_calls>", "<arg_key>")),
    model_types=("hy_v3",),
)
HY_V4 = Family(
    name="hy_v4",
    models="Hy4",
    reasoning=Reasoning(start="<think:opensource>", end="</think:opensource>", ended_by_calls=True),
    tools=_sectioned_argument_tags(":opensource"),
    special_tokens=True,
    signs=((":opensource>",),),
    model_types=("hy_v4",),
)
MUSE_GLIMMER = Family(
    name="muse_glimmer",
    models="Muse Glimmer",
    reasoning=Reasoning(
        start="to=self<|message|>",
        end="<|eom|>",
        other_ends=("to=user<|message|>", "<|eot|>"),
        anywhere=True,
        ended_by_calls=True,
    ),
    tools=KeyValues(
        summary='`to=f<|message|><atem:function_calls><atem:invoke name="f">'
        '<atem:parameter name="a">1</atem:parameter></atem:invoke></atem:function_calls>`',
        section=Section(
            call_starts=('<atem:invoke name="',),
            call_ends=("</atem:invoke>",),
            starts=("<atem:function_calls>",),
            ends=("</atem:function_calls>",),
        ),
        header=("to=", "<|message|>"),
        name_ends=('">',),
        key_start='<atem:parameter name="',
        value_ends=("</atem:parameter>",),
    ),
    special_tokens=True,
    endings=("<|start|>assistant", "to=user<|message|>", "<|message|>", "<|eom|>", "<|eot|>"),
    signs=(("<atem:function_calls>",),),
    model_types=("muse_glimmer",),
)
KIMI_K3 = Family(
    name="kimi_k3",
    models="Kimi K3",
    reasoning=Reasoning(
        start="<|open|>think<|sep|>",
        end="<|close|>think<|sep|>",
        other_ends=("<|open|>response<|sep|>",),
        anywhere=True,
        ended_by_calls=True,
    ),
    tools=KeyValues(
        summary='`<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>`",
        section=Section(
            call_starts=('<|open|>call tool="',),
            call_ends=("<|close|>call<|sep|>",),
            starts=("<|open|>tools<|sep|>",),
            ends=("<|close|>tools<|sep|>",),
        ),
        name_ends=('"',),
        attributes_end="<|sep|>",
        key_start='<|open|>argument key="',
        key_ends=_K3_TAG,
        value_ends=("<|close|>argument<|sep|>",),
    ),
    special_tokens=True,
    endings=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    signs=(("<|open|>", "<|sep|>"),),
    model_types=("kimi_k3",),
)
