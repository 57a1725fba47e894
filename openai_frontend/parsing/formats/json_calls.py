"""Calls as JSON objects with a name and arguments, alone or in arrays, between markers or bare:
Hermes, Llama 3, Granite, Phi 4, Nemotron, Mistral's older format, models without a documented
format, and outputs that a constraint limits to calls.
"""

import json
from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.buffer import MAX_NAME, Cursor, NotToolCall
from openai_frontend.parsing.events import EventBuffer, is_name
from openai_frontend.parsing.family import (
    TAKES_TOOLS,
    THINK,
    THINK_UNTIL_CALLS,
    THINKING,
    Family,
    Reasoning,
)
from openai_frontend.parsing.values import ValueReader, converted

_NAME_KEYS = frozenset(("name", "tool_name"))
_ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_BARE_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"function", "type", "id", "tool_call_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """The markers around the objects. A bare object is a call only if it names an offered tool;
    with `offered_only`, this holds for every object.
    """

    summary: str
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separators: tuple[str, ...] = (",", ";")
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False
    offered_only: bool = False
    named_by_key: bool = False  # each object has one member: the name and the arguments

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        bare = self.offered_only or start not in self.starts
        may_repeat = not bare or bool(self.line_starts)
        while True:
            yield from self._object_or_array(cursor, output, bare=bare)
            yield from cursor.skip_closing_brackets()
            yield from cursor.skip_space()
            after = yield from cursor.accept(*self.ends, *self.separators)
            if after in self.ends:
                cursor.record()
                return
            if not after and not (may_repeat and (yield from cursor.peek()) == "{"):
                return

    def _object_or_array(
        self, cursor: Cursor, output: EventBuffer, *, bare: bool
    ) -> Generator[None, None, None]:
        yield from cursor.skip_space()
        opener = yield from cursor.peek()
        if opener == "{":
            yield from self._object(cursor, output, bare=bare)
            return
        yield from cursor.expect("[")
        yield from cursor.skip_space()
        if not bare and (yield from cursor.accept("]")):
            output.marker()
            cursor.record()
            return
        while True:
            yield from cursor.skip_space()
            yield from self._object(cursor, output, bare=bare)
            yield from cursor.skip_space()
            after = yield from cursor.accept(",", "]")
            if after != ",":
                cursor.record()
                return

    def _object(
        self, cursor: Cursor, output: EventBuffer, *, bare: bool
    ) -> Generator[None, None, None]:
        return _CallObject(cursor, output, bare=bare, named_by_key=self.named_by_key).read()


class _CallObject:
    """One object with its members in any order. Arguments that come before the name wait for it."""

    def __init__(
        self, cursor: Cursor, output: EventBuffer, *, bare: bool, named_by_key: bool
    ) -> None:
        self._cursor = cursor
        self._output = output
        self._bare = bare
        self._named_by_key = named_by_key
        self._name = ""
        self._waiting: list[str] | None = None
        self._done = False
        self._nested = False

    def read(self) -> Generator[None, None, None]:
        yield from self._members()
        if not self._done:
            if not self._name:
                raise NotToolCall
            self._whole_call("".join(self._waiting or ("{}",)))
        self._cursor.record()

    def _members(self) -> Generator[None, None, None]:
        yield from self._cursor.expect("{")
        while True:
            yield from self._cursor.skip_space()
            yield from self._member((yield from self._short_string()))
            yield from self._cursor.skip_space()
            after = yield from self._cursor.accept(",", "}")
            if not after and not self._done:
                raise NotToolCall
            if after != ",":
                return

    def _member(self, key: str) -> Generator[None, None, None]:
        yield from self._cursor.skip_space()
        yield from self._cursor.expect(":")
        yield from self._cursor.skip_space()
        first = yield from self._cursor.peek()
        if self._named_by_key and not self._name:
            self._named(key)
            yield from self._arguments(first)
        elif key == "function" and first == "{" and not self._nested:
            self._nested = True
            yield from self._members()
        elif (key in _NAME_KEYS or key == "function") and not self._name:
            self._named((yield from self._short_string()))
        elif key in _ARGUMENT_KEYS and not self._done and self._waiting is None:
            yield from self._arguments(first)
        elif self._bare and not self._done and key not in _BARE_KEYS:
            raise NotToolCall  # early, so that an ordinary JSON answer is not held back
        else:
            yield from ValueReader(self._cursor, _ignore).read()

    def _named(self, name: str) -> None:
        if not is_name(name) or (self._bare and name not in self._output.schemas):
            raise NotToolCall
        self._name = name
        if self._waiting is not None:
            self._whole_call("".join(self._waiting))

    def _arguments(self, first: str) -> Generator[None, None, None]:
        if first == "{" and self._name:
            self._output.begin(self._name)
            self._cursor.forget()
            yield from self._output.json_arguments(
                ValueReader(self._cursor, self._output.arguments)
            )
            self._ended()
            return
        self._waiting = []
        yield from ValueReader(self._cursor, self._waiting.append).read()
        self._waiting = [_object_text("".join(self._waiting))]
        if self._name:
            self._whole_call(self._waiting[0])

    def _whole_call(self, arguments: str) -> None:
        self._output.begin(self._name)
        self._output.arguments(arguments)
        self._ended()

    def _ended(self) -> None:
        self._output.end()
        self._done = True
        self._cursor.record()

    def _short_string(self) -> Generator[None, None, str]:
        pieces = _ShortText()
        yield from ValueReader(self._cursor, pieces.add).string()
        return str(json.loads("".join(pieces.pieces)))


class _ShortText:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self._room = 6 * MAX_NAME  # a character may be written as an escape of six

    def add(self, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise NotToolCall
        self.pieces.append(text)


def _object_text(value: str) -> str:
    """The arguments in a value that is an object, null, or a string that contains an object."""
    if value.startswith('"'):
        value = converted(json.loads(value)) or ""
    if value == "null":
        return "{}"
    if not value.strip().startswith("{"):
        raise NotToolCall
    return value


def _ignore(_text: str) -> None:
    """For members that are not part of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedArguments:
    """The arguments of a function that the request prescribes: the whole output is one object."""

    name: str
    summary: str = "the arguments alone"
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare_starts: tuple[str, ...] = ("{",)
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        output.begin(self.name)
        cursor.forget()
        yield from output.json_arguments(ValueReader(cursor, output.arguments))
        output.end()
        cursor.record()


_CHATML_ENDINGS = ("<|im_end|>", "<|endoftext|>")

HERMES_CALLS = JsonCalls(
    summary='`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`',
    starts=("<tool_call>",),
    ends=("</tool_call>",),
)
QWEN3 = Family(
    name="qwen3",
    models="Qwen3, QwQ, SmolLM3",
    reasoning=THINK_UNTIL_CALLS,
    tools=HERMES_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<tool_call>", "</think>"), ("<tool_call>", "<think>")),
    model_types=("qwen3", "qwen3_moe", "smollm3"),
    aliases=("qwen3_json",),
)
HERMES = Family(
    name="hermes",
    models="Hermes 2 Pro, Hermes 3, Qwen2.5, Granite 4",
    tools=HERMES_CALLS,
    endings=_CHATML_ENDINGS,
    signs=(("<tool_call>",),),
    model_types=("qwen2", "qwen2_moe", "qwen2_5_vl", "granitemoehybrid"),
    aliases=("qwen2.5", "qwen25", "granite4"),
)
LLAMA3_JSON = Family(
    name="llama3_json",
    models="Llama 3.1, 3.2 and 3.3",
    tools=JsonCalls(
        summary='`{"name": "f", "parameters": {"a": 1}}`, also behind `<|python_tag|>`',
        starts=("<|python_tag|>",),
        separators=(";",),
        bare_starts=("{", "["),
        line_starts=("\n{", "\n["),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    signs=(
        ("<|start_header_id|>", "tools", '"parameters"'),
        ("<|python_tag|>", '"parameters"'),
    ),
    without=("<tool_call>", "<TOOLCALL>"),
    model_types=("llama", "mllama"),
    aliases=("llama3", "llama4_json"),
)
GRANITE = Family(
    name="granite",
    models="Granite 3.0 to 3.3",
    reasoning=Reasoning(start="Here is my thought process:", end="Here is my response:"),
    tools=JsonCalls(
        summary='`<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]`',
        starts=("<|tool_call|>", "<tool_call>"),
        ends=("</tool_call>",),
    ),
    special_tokens=True,
    endings=("<|end_of_text|>",),
    signs=(("<|start_of_role|>", "<|tool_call|>"), ("<|start_of_role|>", "thought process")),
    model_types=("granite", "granitemoe"),
)
GRANITE_20B_FC = Family(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    tools=JsonCalls(
        summary='`<function_call> {"name": "f", "arguments": {"a": 1}}`',
        starts=("<function_call>",),
    ),
    signs=(("<function_call>", "no_function"),),
    aliases=("granite-20b-fc",),
)
PHI4 = Family(
    name="phi4",
    models="Phi-4-mini",
    tools=JsonCalls(
        summary='`functools[{"name": "f", "arguments": {"a": 1}}]`, '
        "`<|tool_call|>{...}<|/tool_call|>`",
        starts=("functools", "<|tool_call|>"),
        ends=("<|/tool_call|>",),
    ),
    special_tokens=True,
    endings=("<|end|>", "<|endoftext|>"),
    signs=(("<|tool|>", "<|/tool|>"), ("functools[",)),
    model_types=("phi3", "phi4mm"),
    aliases=("phi4_mini_json",),
)
NEMOTRON = Family(
    name="nemotron",
    models="Nemotron Nano 9B v2, Llama Nemotron Super and Ultra",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>`',
        starts=("<TOOLCALL>",),
        ends=("</TOOLCALL>",),
    ),
    endings=("<SPECIAL_12>", "<|eot_id|>"),
    signs=(("<TOOLCALL>",),),
    model_types=("nemotron_h", "nemotron-nas"),
)
JAMBA = Family(
    name="jamba",
    models="Jamba 1.5 and later, Hunyuan A13B, MiniMax M1",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>`',
        starts=("<tool_calls>",),
        ends=("</tool_calls>",),
    ),
    signs=(("<tool_calls>",),),
    model_types=("jamba", "hunyuan_v1_moe", "minimax", "minimax_text_01"),
    aliases=("hunyuan_a13b", "minimax_m1"),
)
INTERNLM = Family(
    name="internlm",
    models="InternLM 2.5 and 3",
    tools=JsonCalls(
        summary='`<|action_start|><|plugin|>{"name": "f", "parameters": {"a": 1}}<|action_end|>`',
        starts=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        ends=("<|action_end|>",),
    ),
    special_tokens=True,
    endings=_CHATML_ENDINGS,
    signs=(("<|action_start|>", "<|plugin|>"),),
    model_types=("internlm2", "internlm3"),
)
COMMAND_R7B = Family(
    name="command_r7b",
    models="Command R7B, Command A",
    reasoning=Reasoning(
        start="<|START_THINKING|>", end="<|END_THINKING|>", anywhere=True, ended_by_calls=True
    ),
    tools=JsonCalls(
        summary='`<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>`',
        starts=("<|START_ACTION|>",),
        ends=("<|END_ACTION|>",),
    ),
    special_tokens=True,
    endings=(
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ),
    signs=(("<|START_ACTION|>",),),
    model_types=("cohere2",),
    aliases=("cohere_command3", "cohere_command4"),
)
APERTUS = Family(
    name="apertus",
    models="Apertus",
    reasoning=Reasoning(
        start="<|inner_prefix|>", end="<|inner_suffix|>", anywhere=True, ended_by_calls=True
    ),
    tools=JsonCalls(
        summary='`<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>`',
        starts=("<|tools_prefix|>",),
        ends=("<|tools_suffix|>",),
        named_by_key=True,
    ),
    special_tokens=True,
    endings=("<|assistant_end|>",),
    signs=(("<|tools_prefix|>",),),
    model_types=("apertus",),
)
GIGACHAT3 = Family(
    name="gigachat3",
    models="GigaChat 3",
    tools=JsonCalls(
        summary='`<|function_call|>{"name": "f", "arguments": {"a": 1}}`, older: '
        '`function call<|role_sep|>{"name": "f", "arguments": {"a": 1}}`',
        starts=("<|function_call|>", "function call<|role_sep|>"),
    ),
    special_tokens=True,
    endings=("<|message_sep|>", "</s>"),
    signs=(("<|function_call|>", "<|role_sep|>"), ("function call<|role_sep|>",)),
)
ERNIE45 = Family(
    name="ernie45",
    models="ERNIE 4.5 Thinking",
    reasoning=THINK_UNTIL_CALLS,
    tools=HERMES_CALLS,
    special_tokens=True,
    endings=("<response>", "</response>", *_CHATML_ENDINGS, "</s>"),
    signs=(("<response>", "<tool_call>"),),
    model_types=("ernie4_5", "ernie4_5_moe"),
)
GENERIC_JSON = Family(
    name="json",
    models="any other that is prompted to answer with JSON",
    reasoning=THINK,
    tools=JsonCalls(
        summary='`{"name": "f", "arguments": {"a": 1}}` on its own line, in a fence or tags',
        starts=("```json\n", "<tool_call>", "<tool_calls>", "<function_call>", "```\n"),
        ends=("```", "</tool_call>", "</tool_calls>", "</function_call>"),
        bare_starts=("{", "["),
        line_starts=("\n{", "\n["),
        offered_only=True,
    ),
    aliases=("generic_json", "xlam"),
)
THINK_ONLY = Family(
    name="think",
    models="any that thinks between `<think>` and `</think>` and calls no tools",
    reasoning=THINKING,
    signs=(("<think>",), ("</think>",)),
    without=TAKES_TOOLS,
)
# All output, if a constraint limits it to calls
ANY_CALL = JsonCalls(
    summary='`[{"name": "f", "parameters": {"a": 1}}]`',
    separators=(),
    bare_starts=("[", "{"),
)
