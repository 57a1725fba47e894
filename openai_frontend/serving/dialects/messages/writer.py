"""A stream of Anthropic's events, and the whole message.

The constant parts of a frame are rendered once per block, so a token costs one `orjson.dumps` of
its text.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
)
from openai_frontend.serving.dialects.event_writer import EventWriter
from openai_frontend.serving.dialects.messages.blocks_out import (
    BlockDelta,
    BlockEvent,
    Blocks,
    BlockStart,
    ContentBuilder,
)
from openai_frontend.serving.dialects.messages.reader import MessageJob
from openai_frontend.serving.dialects.messages.stop_reasons import stop_reason
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.collect import collect
from openai_frontend.serving.output.completion_job import STOPPED, OutputEnd, Usage
from openai_frontend.serving.output.stream import StreamDriver, UnreportedTokens
from openai_frontend.serving.request.media import media_tokens
from openai_frontend.sse import TEXT, named_event

_JSON_TEXT = orjson.dumps(TEXT)
# Members of the usage that say nothing here
_FIXED_USAGE = {
    "cache_creation": None,
    "server_tool_use": None,
    "inference_geo": None,
    "service_tier": "standard",
}
_PING = named_event("ping", b'{"type":"ping"}')
_STOP = named_event("message_stop", b'{"type":"message_stop"}')
# Type of an event -> that of its delta, and the member with text
_DELTAS: dict[type[Event], tuple[str, str]] = {
    ContentText: ("text_delta", "text"),
    ReasoningText: ("thinking_delta", "thinking"),
    ToolCallArguments: ("input_json_delta", "partial_json"),
}


def events(message: MessageJob) -> StreamDriver:
    """The message as a stream of events."""
    return StreamDriver(message.job, MessageWriter(message))


async def complete(message: MessageJob) -> bytes:
    """The whole message as JSON."""
    job = message.job
    blocks = Blocks(job.id, hidden_by=message.options.hidden_by)
    [choice], usage = await collect(job, lambda: ContentBuilder(blocks))
    fields = _message(message, choice.output.content(), usage)
    unfinished = choice.output.unfinished
    return orjson.dumps(fields | stop_reason(choice.end, usage, message, unfinished=unfinished))


def _message(message: MessageJob, content: list[Any], usage: Usage) -> dict[str, Any]:
    return {
        "id": message.job.id,
        "type": "message",
        "role": "assistant",
        "model": message.job.model.name,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {**_usage(usage), **_FIXED_USAGE},
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """The prompt's tokens without those found in the cache, which engines fill by themselves."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


class MessageWriter(EventWriter):
    """Writes one message as events; see `output.stream.Writer`."""

    def __init__(self, message: MessageJob) -> None:
        self._message = message
        self._job = message.job
        hidden_by = message.options.hidden_by
        self._hides_thinking = hidden_by is not None
        self._blocks = Blocks(message.job.id, hidden_by=hidden_by)
        self._end = STOPPED
        self._before_text = self._after_text = b""  # of the open block, if it is a text

    def opening(self) -> bytes:
        """The message without content. Its text follows at once if it can have nothing else.

        Called after the first delta, which has the prompt's counts if the engine reports them.
        """
        [request] = self._job.requests
        counted = request.usage
        usage = Usage(prompt_tokens=counted.prompt_tokens, cached_tokens=counted.cached_tokens)
        if not counted.prompt_counted:
            usage.prompt_tokens += media_tokens(request, self._job.model)
        message = _message(self._message, [], usage)
        start = _frame("message_start", {"message": message})
        return start if self._job.parser is not None else start + self._write(self._begin_text())

    def _begin_text(self) -> list[BlockEvent]:
        return [*self._blocks.begin_text()]

    def text(self, choice: int, text: str) -> bytes:
        """A delta of the open text, or the start of one."""
        if self._blocks.open == "text":
            return self._before_text + orjson.dumps(text) + self._after_text
        return self.events(choice, (ContentText(text),), None)

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        """A frame for each event of a block."""
        return self._write(self._blocks.of(events))

    def _write(self, events: Any) -> bytes:
        return b"".join([self._frame(event) for event in events])

    def _frame(self, event: BlockEvent) -> bytes:
        match event:
            case BlockStart(index, block):
                if block["type"] == "text":
                    self._before_text, self._after_text = _around(index, "text_delta", "text")
                return _frame("content_block_start", {"index": index, "content_block": block})
            case BlockDelta(index, delta):
                return _frame("content_block_delta", {"index": index, "delta": delta})
            case _:
                return _frame("content_block_stop", {"index": event.at})

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        """The end of the last block."""
        self._end = end
        return self._write(self._blocks.finish())

    def around(
        self, choice: int, event: ContentText | ReasoningText | ToolCallArguments
    ) -> list[bytes] | None:
        """The parts of a delta of the open block. None for hidden reasoning, which the signature
        contains.
        """
        blocks = self._blocks
        match event:
            case ContentText():
                is_open = blocks.open == "text"
            case ReasoningText():
                is_open = blocks.open == "thinking" and not self._hides_thinking
            case ToolCallArguments(index):
                is_open = blocks.open == "tool_use" and blocks.call == index
        return [*_around(blocks.index, *_DELTAS[type(event)])] if is_open else None

    def keep_alive(self) -> bytes:
        """Clients of this API wait for events, not for comments."""
        return _PING

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """The error as the last event."""
        reply = failure.in_form("anthropic", self._job.context.request_id)
        return unsent + named_event("error", reply.body)

    def closing(self, usage: Usage) -> bytes:
        """Why the message ended, all counts, and the end."""
        unfinished = self._blocks.unfinished
        reason = stop_reason(self._end, usage, self._message, unfinished=unfinished)
        delta = {"container": None, **reason}
        return _frame("message_delta", {"delta": delta, "usage": _usage(usage)}) + _STOP


def _frame(kind: str, fields: dict[str, Any]) -> bytes:
    return named_event(kind, orjson.dumps({"type": kind, **fields}))


def _around(index: int, kind: str, member: str) -> tuple[bytes, bytes]:
    """The bytes before and after the JSON string of a delta."""
    frame = _frame("content_block_delta", {"index": index, "delta": {"type": kind, member: TEXT}})
    before, _, after = frame.partition(_JSON_TEXT)
    return before, after
