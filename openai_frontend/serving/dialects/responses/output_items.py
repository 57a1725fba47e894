"""Events of the output as items, and the events of a stream that announce them.

A stream writes the steps; a whole response keeps only the items. So the two cannot disagree.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import orjson

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames
from openai_frontend.serving.output.custom_input import CustomInputDecoder
from openai_frontend.serving.request.sealed_text import TextSeal

Fields = dict[str, Any]
_NO_TOOL = ToolName("function", "")
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Step(NamedTuple):
    """An event of the stream: its type after `response.`, and its other members."""

    name: str
    fields: Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemForm:
    """The form of a response's items."""

    id: str  # the part of the items' ids that belongs to the response
    names: ToolNames
    summaries: bool = False  # reasoning is a summary, not content
    seal: TextSeal | None = None  # of `encrypted_content` in reasoning items


@dataclass(slots=True)
class OpenItem(ABC):
    """An item that the output still adds to."""

    prefix: ClassVar[str]  # of its id
    delta_event: ClassVar[str] = ""  # the step of a piece of its text

    form: ItemForm
    index: int  # of the item in the output
    texts: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Derived from the response's, so that a stream and its last event agree."""
        return f"{self.prefix}_{self.form.id}{self.index:04x}"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)

    @property
    def at(self) -> Fields:
        """The members by which an event names the item."""
        return {"item_id": self.id, "output_index": self.index}

    @abstractmethod
    def fields(self, status: ItemStatus) -> Fields:
        """The item as it is now."""

    def opening(self) -> list[Step]:
        """The steps that announce the item."""
        return [self._item("added", self.fields("in_progress"))]

    def piece(self, text: str, logprobs: Sequence[Any] = ()) -> list[Step]:
        """The steps of a piece of text, which is added."""
        self.texts.append(text)
        return [Step(self.delta_event, self.delta(text, logprobs))]

    def delta(self, text: str, logprobs: Sequence[Any] = ()) -> Fields:
        """The members of a step for a piece of text."""
        return {**self.at, "delta": text}

    def closing(self) -> list[Step]:
        """The steps before the item is done."""
        return []

    def end(self, status: ItemStatus) -> tuple[list[Step], Fields]:
        """The last steps, and the complete item."""
        steps = self.closing()
        item = self.fields(status)
        return [*steps, self._item("done", item)], item

    def _item(self, what: str, item: Fields) -> Step:
        return Step(f"output_item.{what}", {"output_index": self.index, "item": item})


@dataclass(slots=True)
class OpenMessage(OpenItem):
    """Text for the user."""

    prefix = "msg"
    delta_event = "output_text.delta"

    logprobs: list[Any] = field(default_factory=list)

    @property
    def _part_at(self) -> Fields:
        return {**self.at, "content_index": 0}

    def _part(self, text: str, logprobs: Sequence[Any]) -> Fields:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def fields(self, status: ItemStatus) -> Fields:
        begun = status != "in_progress"
        content = [self._part(self.text, self.logprobs)] if begun else []
        message: Fields = {"id": self.id, "type": "message", "status": status}
        return {**message, "role": "assistant", "content": content}

    def opening(self) -> list[Step]:
        part = Step("content_part.added", {**self._part_at, "part": self._part("", [])})
        return [*OpenItem.opening(self), part]

    def piece(self, text: str, logprobs: Sequence[Any] = ()) -> list[Step]:
        self.logprobs += logprobs
        return OpenItem.piece(self, text, logprobs)

    def delta(self, text: str, logprobs: Sequence[Any] = ()) -> Fields:
        return {**self._part_at, "delta": text, "logprobs": logprobs}

    def closing(self) -> list[Step]:
        text, part = self.text, self._part(self.text, self.logprobs)
        return [
            Step("output_text.done", {**self._part_at, "text": text, "logprobs": self.logprobs}),
            Step("content_part.done", {**self._part_at, "part": part}),
        ]


@dataclass(slots=True)
class OpenReasoning(OpenItem):
    """Reasoning as content (OpenAI's `reasoning_text`)."""

    prefix = "rs"
    delta_event = "reasoning_text.delta"

    @property
    def _part_at(self) -> Fields:
        return {**self.at, "content_index": 0}

    def _part(self, text: str) -> Fields:
        return {"type": "reasoning_text", "text": text}

    def fields(self, status: ItemStatus) -> Fields:
        text = self.text
        parts = [self._part(text)] if status != "in_progress" else []
        item: Fields = {"id": self.id, "type": "reasoning", "status": status}
        item |= self._contents(parts)
        if self.form.seal is not None:
            item["encrypted_content"] = self.form.seal(text)
        return item

    def _contents(self, parts: list[Fields]) -> Fields:
        return {"summary": [], "content": parts}

    def opening(self) -> list[Step]:
        part = Step("content_part.added", {**self._part_at, "part": self._part("")})
        return [*OpenItem.opening(self), part]

    def delta(self, text: str, logprobs: Sequence[Any] = ()) -> Fields:
        return {**self._part_at, "delta": text}

    def closing(self) -> list[Step]:
        text = self.text
        return [
            Step("reasoning_text.done", {**self._part_at, "text": text}),
            Step("content_part.done", {**self._part_at, "part": self._part(text)}),
        ]


@dataclass(slots=True)
class OpenSummary(OpenReasoning):
    """Reasoning as its own summary, for clients that show only summaries."""

    delta_event = "reasoning_summary_text.delta"

    @property
    def _part_at(self) -> Fields:
        return {**self.at, "summary_index": 0}

    def _part(self, text: str) -> Fields:
        return {"type": "summary_text", "text": text}

    def _contents(self, parts: list[Fields]) -> Fields:
        return {"summary": parts}

    def opening(self) -> list[Step]:
        part = Step("reasoning_summary_part.added", {**self._part_at, "part": self._part("")})
        return [*OpenItem.opening(self), part]

    def closing(self) -> list[Step]:
        text = self.text
        return [
            Step("reasoning_summary_text.done", {**self._part_at, "text": text}),
            Step("reasoning_summary_part.done", {**self._part_at, "part": self._part(text)}),
        ]


@dataclass(slots=True)
class OpenFunctionCall(OpenItem):
    """A call of a function."""

    prefix = "fc"
    delta_event = "function_call_arguments.delta"

    call_id: str = ""
    tool: ToolName = _NO_TOOL

    @property
    def _named(self) -> Fields:
        named: Fields = {"call_id": self.call_id, "name": self.tool.name}
        if self.tool.namespace is not None:
            named["namespace"] = self.tool.namespace
        return named

    def fields(self, status: ItemStatus) -> Fields:
        call: Fields = {"id": self.id, "type": "function_call", "status": status}
        return {**call, **self._named, "arguments": self.text}

    def closing(self) -> list[Step]:
        done = {**self.at, "name": self.tool.name, "arguments": self.text}
        return [Step("function_call_arguments.done", done)]


@dataclass(slots=True)
class OpenCustomCall(OpenFunctionCall):
    """A call of a custom tool, whose input the model writes as a JSON object with one text."""

    prefix = "ctc"
    delta_event = "custom_tool_call_input.delta"

    decoder: CustomInputDecoder = field(default_factory=CustomInputDecoder)

    def fields(self, status: ItemStatus) -> Fields:
        call: Fields = {"id": self.id, "type": "custom_tool_call", "status": status}
        return {**call, **self._named, "input": self.text}

    def piece(self, text: str, logprobs: Sequence[Any] = ()) -> list[Step]:
        decoded = self.decoder.feed(text)
        return OpenItem.piece(self, decoded) if decoded else []

    def closing(self) -> list[Step]:
        rest = self.decoder.finish()
        steps = OpenItem.piece(self, rest) if rest else []
        return [*steps, Step("custom_tool_call_input.done", {**self.at, "input": self.text})]


@dataclass(slots=True)
class OpenSearch(OpenFunctionCall):
    """A search for tools, whose arguments are an object."""

    prefix = "tsc"

    def fields(self, status: ItemStatus) -> Fields:
        call: Fields = {"id": self.id, "type": "tool_search_call", "status": status}
        arguments = _object(self.text)
        return {**call, "call_id": self.call_id, "execution": "client", "arguments": arguments}

    def piece(self, text: str, logprobs: Sequence[Any] = ()) -> list[Step]:
        self.texts.append(text)
        return []

    def closing(self) -> list[Step]:
        return []


def _object(text: str) -> Fields:
    """The JSON object; empty if the model has written anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


_CALLS: dict[str, type[OpenFunctionCall]] = {
    "function": OpenFunctionCall,
    "custom": OpenCustomCall,
    "tool_search": OpenSearch,
}


class OutputItems:
    """The items of one response, from the events of its output."""

    def __init__(self, form: ItemForm) -> None:
        self._form = form
        self._text_kinds: dict[type, type[OpenItem]] = {
            ContentText: OpenMessage,
            ReasoningText: OpenSummary if form.summaries else OpenReasoning,
        }
        self.done: list[Fields] = []
        self.open: OpenItem | None = None

    def add(self, events: Iterable[Event], logprobs: Sequence[Any] = ()) -> list[Step]:
        """The steps of the events. The log probabilities belong to the first text.

        A call that the model left incomplete ends with the output, which says whether it was cut.
        """
        steps: list[Step] = []
        for event in events:
            match event:
                case ContentText(text) | ReasoningText(text):
                    if text or logprobs:
                        steps += self._opened(self._text_kinds[type(event)])
                        entries, logprobs = logprobs, ()
                        steps += self._piece(text, entries)
                case ToolCallStart():
                    steps += self._close("completed")
                    steps += self._begin(self._call(event))
                case ToolCallArguments(text=text):
                    steps += self._piece(text, ())
                case ToolCallEnd(complete=True):
                    steps += self._close("completed")
        return steps

    def relayed(self, events: Iterable[Event]) -> None:
        """Text of the open item that the client has already."""
        if self.open is not None:
            for event in events:
                if isinstance(event, ContentText | ReasoningText | ToolCallArguments):
                    self.open.texts.append(event.text)

    def continues(self, event: Event) -> OpenItem | None:
        """The open item if the event adds a plain text to it."""
        item = self.open
        if isinstance(event, ToolCallArguments):
            return item if type(item) is OpenFunctionCall else None
        return item if type(item) is self._text_kinds.get(type(event)) else None

    def finish(self, *, complete: bool) -> list[Step]:
        """The steps at the end of the output. An output of nothing is an empty message."""
        steps = []
        if complete and self.open is None and not self.done:
            steps = self._begin(OpenMessage(self._form, 0))
        return steps + self._close("completed" if complete else "incomplete")

    def _piece(self, text: str, logprobs: Sequence[Any]) -> list[Step]:
        return [] if self.open is None else self.open.piece(text, logprobs)

    def _opened(self, kind: type[OpenItem]) -> list[Step]:
        if type(self.open) is kind:
            return []
        return self._close("completed") + self._begin(kind(self._form, len(self.done)))

    def _begin(self, item: OpenItem) -> list[Step]:
        self.open = item
        return item.opening()

    def _call(self, event: ToolCallStart) -> OpenItem:
        tool = self._form.names.by_flat.get(event.name) or ToolName("function", event.name)
        index = len(self.done)
        return _CALLS[tool.kind](self._form, index, call_id=event.id, tool=tool)

    def _close(self, status: ItemStatus) -> list[Step]:
        item, self.open = self.open, None
        if item is None:
            return []
        steps, done = item.end(status)
        self.done.append(done)
        return steps
