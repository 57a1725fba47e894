"""Parsed events as OpenAI's deltas, and a message as the sum of its deltas.

So a stream and a whole response cannot disagree.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.request.tools import Tools
from openai_frontend.sse import TEXT

Delta = Mapping[str, Any]


class ChatDeltas:
    """Turns one choice's events into deltas. A call's id, type and name are sent once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._inputs: dict[int, CustomInputDecoder] = {}  # of custom tool calls in progress

    def of(self, events: Iterable[Event]) -> list[Delta]:
        """One delta for each event that has visible output, as OpenAI sends them."""
        return [delta for event in events for delta in self._of(event)]

    def template(self, event: ContentText | ReasoningText | ToolCallArguments) -> Delta | None:
        """The delta of the event, which has no text, with `TEXT` for it. None if the delta has not
        just that text.
        """
        match event:
            case ToolCallArguments(index):
                return None if index in self._inputs else next(self._more(index, TEXT))
            case ContentText() | ReasoningText():
                return next(self._of(type(event)(TEXT)))

    def _of(self, event: Event) -> Iterator[Delta]:
        match event:
            case ContentText(text):
                yield {"content": text}
            case ReasoningText(text):
                yield {"reasoning_content": text, "reasoning": text}
            case ToolCallStart():
                yield self._begun(event)
            case ToolCallArguments(index, text):
                yield from self._more(index, text)
            case ToolCallEnd(index) if index in self._inputs:
                text = self._inputs.pop(index).finish()
                if text:
                    yield _call(index, {"custom": {"input": text}})

    def _begun(self, call: ToolCallStart) -> Delta:
        if self._tools.legacy:
            return {"function_call": {"name": call.name, "arguments": ""}}
        if call.name in self._tools.custom:
            self._inputs[call.index] = CustomInputDecoder()
            custom = {"name": call.name, "input": ""}
            return _call(call.index, {"id": call.id, "type": "custom", "custom": custom})
        function = {"name": call.name, "arguments": ""}
        return _call(call.index, {"id": call.id, "type": "function", "function": function})

    def _more(self, index: int, text: str) -> Iterator[Delta]:
        custom = self._inputs.get(index)
        if custom is not None:
            if input_text := custom.feed(text):
                yield _call(index, {"custom": {"input": input_text}})
        elif self._tools.legacy:
            yield {"function_call": {"arguments": text}}
        else:
            yield _call(index, {"function": {"arguments": text}})


def _call(index: int, fields: Delta) -> Delta:
    return {"tool_calls": [{"index": index, **fields}]}


class ChatMessageBuilder:
    """Adds up one choice's deltas."""

    def __init__(self, tools: Tools) -> None:
        self._deltas = ChatDeltas(tools)
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._function_call: dict[str, Any] | None = None

    def add(self, events: Iterable[Event]) -> None:
        for delta in self._deltas.of(events):
            self._add(delta)

    def _add(self, delta: Delta) -> None:
        for name in ("content", "reasoning_content"):
            if text := delta.get(name):
                self._texts.setdefault(name, []).append(text)
        if function_call := delta.get("function_call"):
            self._function_call = _sum(self._function_call or {}, function_call)
        for call in delta.get("tool_calls", ()):
            fields = {name: value for name, value in call.items() if name != "index"}
            if call["index"] == len(self._calls):
                self._calls.append({})
            self._calls[call["index"]] = _sum(self._calls[call["index"]], fields)

    def fields(self, before: str = "") -> dict[str, Any]:
        """The fields of ChatCompletionMessage, with `before` in front of its content."""
        content = before + "".join(self._texts.get("content", ()))
        only_calls = not content and bool(self._calls or self._function_call)
        fields: dict[str, Any] = {
            "role": "assistant",
            "content": None if only_calls else content,
            "refusal": None,
            "annotations": [],
        }
        if reasoning := "".join(self._texts.get("reasoning_content", ())):
            fields |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if self._calls:
            fields["tool_calls"] = self._calls
        if self._function_call is not None:
            fields["function_call"] = self._function_call
        return fields


def _sum(first: Mapping[str, Any], more: Delta) -> dict[str, Any]:
    """Texts concatenated, objects merged by member, as clients add them up."""
    joined = dict(first)
    for name, value in more.items():
        if isinstance(value, Mapping):
            joined[name] = _sum(joined.get(name, {}), value)
        else:
            joined[name] = joined.get(name, "") + value
    return joined


_OPENING = re.compile(r'[ \t\r\n]*+\{[ \t\r\n]*+"input"[ \t\r\n]*+:[ \t\r\n]*+"')
_MAX_OPENING = 256
_WITHIN = re.compile(r'(?>[^"\\]++|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*+')  # no backtracking
_BEGUN = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")  # an incomplete escape
_HALF_A_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}|[\ud800-\udbff]")


class CustomInputDecoder:
    """Decodes the object piece by piece. An object of another form is the input as it is."""

    def __init__(self) -> None:
        self._pending = ""  # received, not returned yet
        self._other: list[str] = []  # an object of another form, in full
        self._within = False  # after the input's opening quote
        self._over = False

    def feed(self, text: str) -> str:
        """The text that this piece adds to the input."""
        if self._over:
            return ""
        if self._other:
            self._other.append(text)
            return ""
        self._pending += text
        if not self._within:
            self._open()
        return self._decode() if self._within else ""

    def finish(self) -> str:
        """The pending text: everything if the object has another form."""
        if self._within and not self._over:
            return "\ufffd" if _HALF_A_PAIR.match(self._pending) else ""
        return "" if self._over else "".join([*self._other, self._pending])

    def _open(self) -> None:
        if opening := _OPENING.match(self._pending):
            self._within = True
            self._pending = self._pending[opening.end() :]
        elif len(self._pending) > _MAX_OPENING:
            self._other, self._pending = [self._pending], ""

    def _decode(self) -> str:
        """The text up to the closing quote or an incomplete escape."""
        spelled, at = [], 0
        while matched := _WITHIN.match(self._pending, at):
            spelled.append(matched.group())
            at = matched.end()
            self._over = self._pending.startswith('"', at)
            if self._over or _BEGUN.fullmatch(self._pending, at):
                break
            spelled.append(r"\\")  # not a JSON escape: a literal backslash
            at += 1
        text = "".join(spelled)
        half = 0 if self._over else _half_a_pair(text)
        self._pending = self._pending[at - half :]
        decoded: str = json.loads(f'"{text[: len(text) - half]}"', strict=False)
        return decoded.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _half_a_pair(text: str) -> int:
    """Length of the half of a surrogate pair at the end of the JSON text, whose other half may
    follow; 0 if there is none.
    """
    for length in (6, 1):  # an escape, and the half itself
        if len(text) >= length and _HALF_A_PAIR.fullmatch(text, len(text) - length):
            before = text[:-length]
            backslashes = len(before) - len(before.rstrip("\\"))
            return 0 if backslashes % 2 else length  # after a backslash it is not an escape
    return 0
