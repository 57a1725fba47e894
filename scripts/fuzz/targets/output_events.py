"""The events of any output, written as a stream of /v1/responses.

Its rules hold, whatever a model does and a relay writes, and its items are those of a whole answer.
"""

from collections.abc import Iterator, Sequence

from orjson import dumps

from openai_frontend.generation import NUMBER_SLOT, GenerationRequest
from openai_frontend.parsing.events import (
    ContentText,
    Event,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.dialects.responses.output_items import ItemForm, OutputItems
from openai_frontend.serving.dialects.responses.response_object import ResponseJob, echoed
from openai_frontend.serving.dialects.responses.tool_list import ToolName, ToolNames
from openai_frontend.serving.dialects.responses.writer import ResponseEventWriter
from openai_frontend.serving.output.completion_job import CompletionJob, OutputEnd, Usage
from schemas.responses import ResponsesRequest
from scripts.fuzz.draw import Draw, pieces
from tests.fast.serving.fake_model import FakeModel, admission
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
    names = ToolNames()
    for kind in KINDS:
        names.add(ToolName(kind, kind))  # type: ignore[arg-type]
    form = ItemForm(id="1", names=names, summaries=bool(flags & 1), seals_reasoning=bool(flags & 2))
    events = list(_events(draw, flags))
    end = OutputEnd("length" if flags & 4 else "stop")

    stream = read_stream(_streamed(form, events, end, seed))

    whole = OutputItems(form)
    whole.add(events)
    whole.finish(complete=end.reason != "length")
    assert stream.output == whole.done


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
            yield ToolCallEnd(calls, complete=not flags & 8)
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
    )


def _streamed(form: ItemForm, events: Sequence[Event], end: OutputEnd, seed: int) -> bytes:
    """Some events are relayed, as far as the writer has constant parts for them."""
    echo = echoed(ResponsesRequest(input="x"), (), {})
    writer = ResponseEventWriter(ResponseJob(job=_job(), form=form, echo=echo))
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


def _relayed(writer: ResponseEventWriter, around: list[bytes], text: str) -> bytes:
    before, after = around
    return before.replace(NUMBER_SLOT, b"%d" % writer.numbers.take()) + dumps(text) + after
