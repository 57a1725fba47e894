"""Events as Anthropic's blocks: the events of a stream, and a message's content as their sum.

So a stream and a whole message cannot disagree.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from pydantic_core import from_json

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.serving.request.sealed_text import TextSeal

Fields = Mapping[str, Any]
BlockKind = Literal["text", "thinking", "tool_use"]


class BlockStart(NamedTuple):
    """A block begins; blocks are numbered from 0 without gaps."""

    at: int
    block: Fields


class BlockDelta(NamedTuple):
    """More of the open block."""

    at: int
    delta: Fields


class BlockStop(NamedTuple):
    """The open block is complete."""

    at: int


BlockEvent = BlockStart | BlockDelta | BlockStop

_EMPTY_TEXT = {"type": "text", "text": "", "citations": None}
_CALLER = {"type": "direct"}  # the model itself, not another tool
_EMPTY_THINKING = {"type": "thinking", "thinking": "", "signature": ""}


class Blocks:
    """Turns events into those of blocks. One block is open at a time."""

    def __init__(self, message_id: str, *, hidden_by: TextSeal | None = None) -> None:
        """`hidden_by`: the text of reasoning is only in its signature, sealed."""
        self.open: BlockKind | None = None
        self.index = -1  # of the open block, or the last one
        self.call = -1  # the number of the call, if the open block is one
        self.unfinished = False  # the arguments of the last call are incomplete
        self._message_id = message_id
        self._hidden_by = hidden_by
        self._hidden: list[str] = []  # reasoning

    def of(self, events: Iterable[Event]) -> Iterator[BlockEvent]:
        """The events of blocks, in order."""
        for event in events:
            match event:
                case ContentText(text):
                    yield from self._begin("text", _EMPTY_TEXT)
                    yield BlockDelta(self.index, {"type": "text_delta", "text": text})
                case ReasoningText(text):
                    yield from self._begin("thinking", _EMPTY_THINKING)
                    if self._hidden_by is not None:
                        self._hidden.append(text)
                    else:
                        yield BlockDelta(self.index, {"type": "thinking_delta", "thinking": text})
                case ToolCallStart(call, _, name):
                    yield from self._end()
                    yield from self._begin("tool_use", _tool_use(name))
                    self.call = call
                case ToolCallArguments(_, text):
                    delta = {"type": "input_json_delta", "partial_json": text}
                    yield BlockDelta(self.index, delta)
                case ToolCallEnd():
                    self.unfinished = not event.complete
                    yield from self._end()

    def finish(self) -> Iterator[BlockEvent]:
        """The end of the content, which has at least one block."""
        if self.index < 0:
            yield from self._begin("text", _EMPTY_TEXT)
        yield from self._end()

    def begin_text(self) -> Iterator[BlockEvent]:
        """The start of a content that is text."""
        return self._begin("text", _EMPTY_TEXT)

    def _begin(self, kind: BlockKind, block: Fields) -> Iterator[BlockEvent]:
        if self.open == kind:
            return
        yield from self._end()
        self.open = kind
        self.index += 1
        yield BlockStart(self.index, block)

    def _end(self) -> Iterator[BlockEvent]:
        if self.open is None:
            return
        if self.open == "thinking":
            yield BlockDelta(self.index, {"type": "signature_delta", "signature": self._signed()})
        self.open, self.call = None, -1
        yield BlockStop(self.index)

    def _signed(self) -> str:
        """The signature of reasoning: its text if that is hidden, else a constant of the block.

        Relayed reasoning does not pass here, so a signature cannot depend on a text that is shown.
        """
        if self._hidden_by is not None:
            text, self._hidden = "".join(self._hidden), []
            return self._hidden_by(text)
        digest = hashlib.sha256(f"{self._message_id}\0{self.index}".encode())
        return f"ofs1.{digest.hexdigest()}"


def _tool_use(name: str) -> Fields:
    """A call without arguments. Its id is unique in a conversation, as those of models are not."""
    id = f"toolu_{secrets.token_hex(12)}"
    return {"type": "tool_use", "id": id, "name": name, "input": {}, "caller": _CALLER}


class ContentBuilder:
    """Adds up the events of blocks."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._content: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the open block

    def add(self, events: Iterable[Event]) -> None:
        """The next events."""
        self._add(self._blocks.of(events))

    def content(self) -> list[dict[str, Any]]:
        """All blocks, once the output is complete."""
        self._add(self._blocks.finish())
        return self._content

    @property
    def unfinished(self) -> bool:
        """Whether the arguments of the last call are incomplete."""
        return self._blocks.unfinished

    def _add(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlockStart(_, block):
                    self._content.append(dict(block))
                case BlockDelta(_, {"type": "signature_delta", "signature": signature}):
                    self._content[-1]["signature"] = signature
                case BlockDelta(_, delta):
                    self._texts.append(delta[_TEXT_OF[delta["type"]]])
                case BlockStop():
                    self._close("".join(self._texts))

    def _close(self, text: str) -> None:
        block = self._content[-1]
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
        self._texts.clear()


# Type of a delta -> its member with text
_TEXT_OF = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


def _input(text: str) -> Any:
    """The arguments of a call: as the model wrote them, or of an incomplete call what they say so
    far, as the SDK's accumulator reads them.
    """
    try:
        if isinstance(orjson.loads(text), dict):
            return orjson.Fragment(text)
    except orjson.JSONDecodeError:
        pass
    try:
        partial = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return partial if isinstance(partial, dict) else {}
