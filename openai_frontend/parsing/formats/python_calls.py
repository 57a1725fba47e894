"""Calls in Python syntax: `[f(a=1), g()]`. Parsed by hand; nothing is ever evaluated."""

import re
from collections.abc import Generator
from dataclasses import dataclass

from openai_frontend.parsing.arguments import ArgumentsWriter
from openai_frontend.parsing.buffer import MAX_NAME, Cursor, NotToolCall
from openai_frontend.parsing.events import EventBuffer, is_name
from openai_frontend.parsing.family import THINK, Family
from openai_frontend.parsing.formats.json_calls import JsonCalls
from openai_frontend.parsing.values import PYTHON, ValueReader

_NAME = re.compile(r"[\w./\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """A list of calls, or consecutive calls. A bare list counts only if it starts with an offered
    tool.
    """

    summary: str
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    bare_starts: tuple[str, ...] = ()
    line_starts: tuple[str, ...] = ()
    frames_output: bool = False
    on_lines: bool = False  # one per line, without commas
    json_form: JsonCalls | None = None  # JSON variant, which some models write

    def read(self, cursor: Cursor, output: EventBuffer, start: str) -> Generator[None, None, None]:
        bare = start not in self.starts
        yield from cursor.skip_space()
        first = (yield from cursor.ahead(2)) if self.json_form else ""
        if self.json_form and (first == "[{" or first.startswith("{")):
            yield from self.json_form.read(cursor, output, start)
            return
        listed = bool((yield from cursor.accept("[")))
        yield from cursor.skip_space()
        closing = ("]",) if listed else self.ends
        empty = not bare and bool((yield from cursor.accept(*closing)))
        if empty:
            output.marker()
            cursor.record()
        while not empty:
            yield from cursor.skip_space()
            yield from _call(cursor, output, bare=bare)
            yield from cursor.skip_space()
            if not (yield from self._has_next(cursor, listed=listed)):
                break
        if listed and not empty:
            yield from cursor.expect("]")
            cursor.record()
        if empty and not listed:
            return
        yield from cursor.skip_space()
        if (yield from cursor.accept(*self.ends)):
            cursor.record()

    def _has_next(self, cursor: Cursor, *, listed: bool) -> Generator[None, None, bool]:
        comma = yield from cursor.accept(",")
        yield from cursor.skip_space()
        following = yield from cursor.peek()
        if listed:
            return bool(comma) and following != "]"
        return bool(comma) or (self.on_lines and (following == "_" or following.isalpha()))


def _call(cursor: Cursor, output: EventBuffer, *, bare: bool) -> Generator[None, None, None]:
    name = yield from cursor.word(_NAME, MAX_NAME)
    if not is_name(name) or (bare and name not in output.schemas):
        raise NotToolCall
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
    """The next argument's name, consuming the equals sign; "" if the call closes."""
    yield from cursor.skip_space()
    if (yield from cursor.accept(")")):
        return ""
    key = yield from cursor.word(_NAME, MAX_NAME)
    if not is_name(key):
        raise NotToolCall
    cursor.take(len(key))
    yield from cursor.skip_space()
    yield from cursor.expect("=")
    return key


LLAMA4_PYTHONIC = Family(
    name="llama4_pythonic",
    models="Llama 4",
    tools=PythonCalls(
        summary="`[f(a=1), g()]`, also between `<|python_start|>` and `<|python_end|>`",
        starts=("<|python_start|>",),
        ends=("<|python_end|>",),
        bare_starts=("[",),
        line_starts=("\n[",),
    ),
    special_tokens=True,
    endings=("<|eot|>", "<|eom|>"),
    signs=(("<|header_start|>",),),
    model_types=("llama4", "llama4_text"),
    aliases=("llama4",),
)
PYTHONIC = Family(
    name="pythonic",
    models="Llama 3.2 1B and 3B, ToolACE, Gemma 3",
    tools=PythonCalls(
        summary="`[f(a=1), g()]`, also in a `tool_code` fence",
        starts=("```tool_code\n",),
        ends=("```",),
        bare_starts=("[",),
        line_starts=("\n[",),
    ),
    special_tokens=True,
    endings=("<|eot_id|>", "<|eom_id|>", "<end_of_turn>"),
    signs=(("func_name1(",), ("```tool_code",)),
    model_types=("gemma3", "gemma3_text"),
    aliases=("gemma3",),
)
OLMO3 = Family(
    name="olmo3",
    models="OLMo 3",
    reasoning=THINK,
    tools=PythonCalls(
        summary="`<function_calls>f(a=1)</function_calls>`, one on each line",
        starts=("<function_calls>",),
        ends=("</function_calls>",),
        on_lines=True,
    ),
    endings=("<|im_end|>",),
    signs=(("<function_calls>",),),
    without=("DSML",),
    model_types=("olmo3",),
)
LFM2 = Family(
    name="lfm2",
    models="LFM2",
    reasoning=THINK,
    tools=PythonCalls(
        summary="`<|tool_call_start|>[f(a=1)]<|tool_call_end|>`, JSON as well",
        starts=("<|tool_call_start|>",),
        ends=("<|tool_call_end|>",),
        json_form=JsonCalls(
            summary="", starts=("<|tool_call_start|>",), ends=("<|tool_call_end|>",)
        ),
    ),
    special_tokens=True,
    endings=("<|im_end|>",),
    signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",)),
    model_types=("lfm2", "lfm2_moe"),
)
