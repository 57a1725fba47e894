"""The events of any output, written as a stream of /v1/responses and of /v1/messages.

The rules of both hold, whatever a model does and a relay writes, and the sum of a stream is the
whole answer.
"""

from collections.abc import Iterator, Sequence

from orjson import dumps, loads

from openai_frontend.generation import GenerationRequest
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.parsing.output_format import PLAIN
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.dialects.messages.blocks_out import Blocks, ContentBuilder
from openai_frontend.serving.dialects.messages.reader import MessageJob, MessageOptions
from openai_frontend.serving.dialects.messages.writer import MessageWriter
from openai_frontend.serving.dialects.responses.output_items import ItemForm, OutputItems
from openai_frontend.serving.dialects.responses.response_object import ResponseJob, echoed
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames
from openai_frontend.serving.dialects.responses.writer import ResponseEventWriter
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from openai_frontend.serving.output.output_parsing import ParserConfig
from openai_frontend.serving.output.stream import Writer
from openai_frontend.serving.request.sealed_text import UNENCRYPTED
from openai_frontend.text_relay import NUMBER_SLOT
from schemas.responses import ResponsesRequest
from scripts.fuzz.draw import Draw, pieces
from tests.fast.serving.fake_model import FakeModel, admission
from tests.message_rules import folded, is_object
from tests.response_rules import read_stream

WORDS = ("\x00", "\x01", "\x02", "\x03", '{"input":"', "\\n", "\\ud83d", '"}', "\u2028", "😀")
SEEDS = (
    b"\x00\x01\x00hello\x01world",
    b"\x03\x02\x02{\"input\":\"a\\nb\"}\x01\x00text",
    b"\x01\x05\x03{\"query\":1}\x02\x02{}",
)  # fmt: skip
KINDS = ("function", "custom", "tool_search")


def check(data: bytes) -> None:
    draw = Draw(data)
    flags, seed = draw.byte(), draw.byte()
    events = list(_events(draw, flags))
    end = OutputEnd("length" if flags & 4 else "stop")
    if any(isinstance(event, ToolCallEnd) and event.complete for event in events):
        end = OutputEnd("length" if flags & 4 else "calls")
    _check_response(events, end, flags, seed)
    _check_message(events, end, flags, seed)


def _check_response(events: Sequence[Event], end: OutputEnd, flags: int, seed: int) -> None:
    names = ToolNames()
    for kind in KINDS:
        names.add(ToolName(kind, kind))  # type: ignore[arg-type]
    seal = UNENCRYPTED if flags & 2 else None
    form = ItemForm(id="1", names=names, summaries=bool(flags & 1), seal=seal)
    echo = echoed(ResponsesRequest(input="x"), (), {})
    writer = ResponseEventWriter(ResponseJob(job=_job(), form=form, echo=echo))

    stream = read_stream(_streamed(writer, events, end, seed))

    whole = OutputItems(form)
    whole.add(events)
    whole.finish(complete=end.reason != "length")
    assert stream.output == whole.done


def _check_message(events: Sequence[Event], end: OutputEnd, flags: int, seed: int) -> None:
    options = MessageOptions(hidden_by=UNENCRYPTED if flags & 1 else None)
    writer = MessageWriter(MessageJob(job=_job(), options=options))

    message = folded(_streamed(writer, events, end, seed))

    whole = ContentBuilder(Blocks("resp_1", hidden_by=options.hidden_by))
    whole.add(events)
    assert message["content"] == [
        {name: block[name] for name in expected}
        for expected, block in zip(message["content"], loads(dumps(whole.content())), strict=True)
    ]


def _events(draw: Draw, flags: int) -> Iterator[Event]:
    """Events in an order that parsers keep to."""
    calls = 0
    for part in draw.rest().split(b"\x01"):
        kind, text = part[:1], part[1:].decode(errors="replace")
        if kind in (b"\x02", b"\x03"):
            name = KINDS[len(text) % 3] if kind == b"\x02" else "unknown"
            yield ToolCallStart(calls, f"call_{calls}", name)
            for piece in pieces(text, len(text)):
                yield ToolCallArguments(calls, piece)
            yield ToolCallEnd(calls, complete=is_object(text) and not flags & 8)
            calls += 1
        else:
            yield (ReasoningText if kind == b"\x00" else ContentText)(text)


def _job() -> CompletionJob:
    return CompletionJob(
        id="resp_1",
        model=FakeModel(),  # type: ignore[arg-type]
        context=RequestContext("fuzz"),
        admission=admission(),
        requests=[GenerationRequest(request_id="1", stream=True)],
        parser=ParserConfig(
            new_parser=lambda: PLAIN.parser({}, prompt=None), token_bytes=lambda token: None
        ),
    )


def _streamed(writer: Writer, events: Sequence[Event], end: OutputEnd, seed: int) -> bytes:
    """Some events are relayed, as far as the writer has constant parts for them."""
    written = [writer.opening()]
    for at, event in enumerate(events):
        text = getattr(event, "text", "") if (seed + at) % 2 else ""
        around = writer.around(0, event) if text else None  # type: ignore[arg-type]
        if around is None:
            written.append(writer.events(0, [event], None))
        else:
            written.append(_relayed(writer, around, text))
            writer.relayed(0, [event])
    return b"".join([*written, writer.finish(0, end, None), writer.closing(Usage())])


def _relayed(writer: Writer, around: list[bytes], text: str) -> bytes:
    before, after = around
    if writer.numbers is not None:
        before = before.replace(NUMBER_SLOT, b"%d" % writer.numbers.take())
    return before + dumps(text) + after
