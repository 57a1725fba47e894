"""Writes a response: a stream of OpenAI's events, or one object.

An event is named twice, in its `event:` line and in its data, because clients read one or the
other, and numbered.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from orjson import Fragment, dumps

from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
)
from openai_frontend.serving.dialects.event_writer import EventWriter
from openai_frontend.serving.dialects.responses.output_items import (
    ItemForm,
    OpenItem,
    OpenMessage,
    OutputItems,
    Step,
)
from openai_frontend.serving.dialects.responses.response_object import (
    ResponseJob,
    Status,
    final_status,
)
from openai_frontend.serving.error_reply import ErrorReply
from openai_frontend.serving.output.collect import collect
from openai_frontend.serving.output.completion_job import STOPPED, OutputEnd, Usage
from openai_frontend.serving.output.logprobs import ChatLogprobs, logprobs_writer
from openai_frontend.serving.output.stream import StreamDriver, UnreportedTokens
from openai_frontend.sse import DONE, TEXT, named_event
from openai_frontend.text_relay import NUMBER_SLOT, EventNumbers

_JSON_TEXT = dumps(TEXT)
# Codex gives up after 300 s without an event, so every fourth keep-alive is one.
_COMMENTS = 3
_FAILED = "server_error"


class ResponseEventWriter(EventWriter):
    """Writes the events of one stream; see `output.stream.Writer`."""

    numbers: EventNumbers

    def __init__(self, response: ResponseJob) -> None:
        self._response = response
        job = response.job
        self.numbers = EventNumbers()
        self._items = OutputItems(response.form)
        self._end: OutputEnd = STOPPED
        self._logprobs = None
        if job.options.logprobs is not None:
            self._logprobs = logprobs_writer(job.model, job.options, ChatLogprobs)
        self._around: tuple[OpenItem, list[bytes]] | None = None  # parts of the open item's deltas
        self._silences = 0

    def opening(self) -> bytes:
        """The response without output, twice."""
        return self._state("created", "in_progress") + self._state("in_progress", "in_progress")

    def _state(self, name: str, status: Status, **fields: Any) -> bytes:
        response = Fragment(self._response.document(status, **fields))
        return self._frame(Step(name, {"response": response}))

    def _frame(self, step: Step) -> bytes:
        return _framed(step, b"%d" % self.numbers.take())

    def _frames(self, steps: Iterable[Step]) -> bytes:
        return b"".join([self._frame(step) for step in steps])

    def text(self, choice: int, text: str) -> bytes:
        """A delta of text, which usually continues a message."""
        item = self._items.open
        if type(item) is not OpenMessage:
            return self._frames(self._items.add((ContentText(text),)))
        item.texts.append(text)
        before, after = self._parts(item)
        return before.replace(NUMBER_SLOT, b"%d" % self.numbers.take()) + dumps(text) + after

    def _parts(self, item: OpenItem) -> list[bytes]:
        """The constant parts of a delta's event: before and after its text."""
        if self._around is None or self._around[0] is not item:
            step = Step(item.delta_event, item.delta(TEXT))
            self._around = item, _framed(step, NUMBER_SLOT).split(_JSON_TEXT)
        return self._around[1]

    def events(
        self, choice: int, events: Sequence[Event], tokens: UnreportedTokens | None
    ) -> bytes:
        """The steps of the events, with the log probabilities of their tokens."""
        return self._frames(self._items.add(events, self._reported(events, tokens)))

    def _reported(self, events: Sequence[Event], tokens: UnreportedTokens | None) -> Sequence[Any]:
        """The tokens since the last event, if it is text. Others are not reported."""
        if tokens is None or self._logprobs is None or not events:
            return ()
        positions, _ = tokens.take()
        text = "".join([event.text for event in events if isinstance(event, ContentText)])
        entries = self._logprobs.tokens(positions)["content"] if positions and text else ()
        return _of_suffix(entries, text)

    def relayed(self, choice: int, events: Sequence[Event]) -> None:
        """They belong to the open item."""
        self._items.relayed(events)

    def finish(self, choice: int, end: OutputEnd, tokens: UnreportedTokens | None) -> bytes:
        """The end of the last item."""
        self._end = end
        return self._frames(self._items.finish(complete=end.reason != "length"))

    def closing(self, usage: Usage) -> bytes:
        """The whole response."""
        status, reason = final_status(self._end)
        output = self._items.done
        return self._state(status, status, output=output, usage=usage, incomplete=reason) + DONE

    def failure(self, failure: ErrorReply, unsent: bytes) -> bytes:
        """Two events, because clients act on one or the other: the error, and the failed response
        with the items that are complete.
        """
        error = failure.error
        code, message = error.code or error.type, error.message
        told = {"code": code, "message": message, "param": error.param}
        event = {**told, "error": {"type": error.type, **told}}
        frame = _event("error", {"sequence_number": self.numbers.take(), **event})
        # OpenAI's SDK knows no other code of a server's failure. Codex reads those of a request.
        failed = {"code": _FAILED if error.type == _FAILED else code, "message": message}
        last = self._state("failed", "failed", output=self._items.done, error=failed)
        return unsent + frame + last + DONE

    def keep_alive(self) -> bytes | None:
        """The state of the response again, once a minute at the default interval."""
        self._silences += 1
        if self._silences % (_COMMENTS + 1):
            return None
        return self._state("in_progress", "in_progress", output=self._items.done)

    def around(
        self, choice: int, event: ContentText | ReasoningText | ToolCallArguments
    ) -> list[bytes] | None:
        """None until the item has begun, and for input that is decoded."""
        item = self._items.continues(event)
        return None if item is None else self._parts(item)


def _framed(step: Step, number: bytes) -> bytes:
    """The event of a step. The number follows the type."""
    type = f"response.{step.name}"
    fields = dumps({"type": type, **step.fields})
    head = b'{"type":"%s"' % type.encode()
    rest = fields[len(head) :]
    return b'event: %s\ndata: %s,"sequence_number":%s%s\n\n' % (type.encode(), head, number, rest)


def _event(type: str, fields: Mapping[str, Any]) -> bytes:
    return named_event(type, dumps({"type": type, **fields}))


def events(response: ResponseJob) -> StreamDriver:
    """The response as a stream of events."""
    return StreamDriver(response.job, ResponseEventWriter(response))


class _ItemFold:
    """Adds up the items, without the steps."""

    def __init__(self, form: ItemForm) -> None:
        self.items = OutputItems(form)

    def add(self, events: Iterable[Event]) -> None:
        """The next events."""
        self.items.add(events)


async def complete(response: ResponseJob) -> bytes:
    """The whole response as JSON."""
    job = response.job
    [choice], usage = await collect(job, lambda: _ItemFold(response.form))
    items = choice.output.items
    items.finish(complete=choice.end.reason != "length")
    if job.options.logprobs is not None:
        writer = logprobs_writer(job.model, job.options, ChatLogprobs)
        _add_logprobs(items.done, writer.tokens(choice.logprobs)["content"])
    status, reason = final_status(choice.end)
    return response.document(status, items.done, usage=usage, incomplete=reason)


def _add_logprobs(items: Sequence[dict[str, Any]], entries: Sequence[Any]) -> None:
    """Give each message the log probabilities of its tokens: those whose bytes are its text."""
    tokens = list(map(_bytes, entries))
    raw, at = b"".join(tokens), 0
    ends = list(accumulate(map(len, tokens)))
    for item in items:
        for part in item.get("content") or item.get("summary") or ():
            text = part["text"].encode()
            begin = max(at, raw.find(text, at))
            at = begin + len(text)
            if part["type"] == "output_text":
                first = bisect_right(ends, begin)
                part["logprobs"] = entries[first : bisect_left(ends, at) + bool(text)]


def _bytes(entry: Mapping[str, Any]) -> bytes:
    return bytes(entry["bytes"] or entry["token"].encode())


def _of_suffix(entries: Sequence[Any], text: str) -> Sequence[Any]:
    """The last entries, whose tokens are the text. Those before are of markers."""
    length, at = len(text.encode()), len(entries)
    while at and length > 0:
        at -= 1
        length -= len(_bytes(entries[at]))
    return entries[at:]
