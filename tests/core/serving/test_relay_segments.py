"""Segments of parsed streams that native code writes: the same bytes as without it."""

import itertools
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.parsing.events import MAX_ARGUMENTS, ToolCallArguments
from openai_frontend.parsing.parser import FamilyParser
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.dialects.chat import chunks
from openai_frontend.serving.dialects.messages.reader import MessageJob
from openai_frontend.serving.dialects.messages.writer import events as message_events
from openai_frontend.serving.dialects.responses.output_items import ItemForm
from openai_frontend.serving.dialects.responses.response_object import ResponseJob, echoed
from openai_frontend.serving.dialects.responses.tool_list import ToolNames
from openai_frontend.serving.dialects.responses.writer import events
from openai_frontend.serving.output.completion_job import CompletionJob
from openai_frontend.serving.output.output_parsing import DeltaParser, ParserConfig
from openai_frontend.serving.output.stream import StreamDriver
from openai_frontend.serving.request.response_options import ResponseOptions
from openai_frontend.serving.request.tools import CustomFormat, Tools
from openai_frontend.text_relay import FrameWriter, SegmentEnd, TextRelay
from openai_frontend.triton import inprocess
from schemas.responses import ResponsesRequest
from tests.core.triton import puppet
from tests.core.triton.puppet import Request
from tests.core.triton.test_stream_writer import Connection, body
from tests.examples import scaled
from tests.fast.contracts import recorded
from tests.fast.parsing import samples
from tests.fast.serving.fake_model import FakeModel, admission
from tests.message_rules import folded as fold_message
from tests.response_rules import read_stream

OFFERED = Tools(functions=samples.TOOLS, choice="auto", allowed=frozenset(samples.TOOLS))
Tokens = Sequence[str]


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a core whose models the test answers."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


class Reader:
    """One choice on its way from deltas to frames."""

    def __init__(
        self,
        parser: FamilyParser,
        tools: Tools,
        stream: Callable[[CompletionJob], StreamDriver] = chunks,
        **options: Any,
    ) -> None:
        self._vocabulary: dict[int, str] = {}
        self.config = ParserConfig(
            new_parser=lambda: parser,
            may_call=tools.in_use,
            parallel_calls=tools.parallel,
            token_bytes=lambda token: self._vocabulary[token].encode(),
            **options,
        )
        self.request = GenerationRequest(
            request_id="r", stream=True, count_tokens=True, relay=TextRelay()
        )
        self._parser = DeltaParser(self.config, self.request.usage)
        job = CompletionJob(
            id="id",
            model=FakeModel(),  # type: ignore[arg-type]
            context=RequestContext("req_1"),
            admission=admission(9),
            requests=[self.request],
            options=ResponseOptions(include_usage=True),
            parser=self.config,
            tools=tools,
            created=0,
            repeats_output=stream is in_items,
        )
        self.chunks = stream(job)
        self.sent: list[bytes] = []
        self._write(self.chunks.start())

    def _write(self, frames: bytes) -> bool:
        self.sent.append(frames)
        return False

    def ids(self, tokens: Tokens) -> list[int]:
        """New ids for these texts."""
        first = len(self._vocabulary)
        self._vocabulary.update(enumerate(tokens, first))
        return [*range(first, first + len(tokens))]

    def feed(self, deltas: Sequence[CompletionDelta]) -> None:
        """Writes the frames of a burst."""
        for delta in deltas:
            if self._parser.stopped:
                return
            self.request.usage.add([delta])
            last = self._parser.parse(delta)
            last.segment = self._parser.segment()
            self._write(self.chunks.feed(0, [last]))

    def end(self, count: int, reason: Any = "stop") -> list[bytes]:
        """The whole stream, event by event."""
        last = CompletionDelta(finish_reason=reason, counts=TokenCounts(1, count))
        self.feed([last])
        self._write(self.chunks.finish())
        return b"".join(self.sent).split(b"\n\n")


class Relayed(Reader):
    """The same over the real core, with a relay."""

    def __init__(self, request: Request, parser: FamilyParser, tools: Tools, **options: Any):
        super().__init__(parser, tools, **options)
        self._of = request
        self.relayed = 0  # tokens
        self._decode = VLLMContract(recorded.INPROCESS).decoder(self.request)
        relay = self.request.relay
        assert relay is not None
        stream = request.stream
        relay.offer(
            partial(stream.relay, "text_output"), partial(stream.relay_segments, "text_output")
        )
        self.resume = self.chunks.relay(self._writer())
        assert self.resume is not None

    def _writer(self) -> FrameWriter:
        return self._write

    def put(self, tokens: Tokens) -> None:
        """A response of the engine; one of several tokens has their ids."""
        execution = self._of.execution
        if len(tokens) == 1:
            execution.send_bytes("text_output", tokens[0])
            return
        text, ids = "".join(tokens).encode(), self.ids(tokens)
        execution.send(
            [
                ("text_output", "BYTES", (1,), struct.pack("<I", len(text)) + text),
                ("token_ids", "INT32", (len(ids),), struct.pack(f"<{len(ids)}i", *ids)),
            ]
        )

    def turn(self) -> None:
        """What the event loop does after responses arrived."""
        self._of.turn()
        deltas = [self._decode(each) for each in self._of.stream._native.take()]
        self.relayed += sum(delta.tokens for delta in deltas if delta.relayed)
        self.feed(deltas)
        self.chunks.relay_segment()

    def end(self, count: int, reason: Any = "stop") -> list[bytes]:
        # What was relayed reaches the parser before the last response.
        self._of.execution.send([], final=True)
        self.turn()
        del self._of
        return super().end(count, reason)


class Connected(Relayed):
    """The same to a client that reads slowly: native and Python's frames share a writer."""

    def __init__(self, connection: Connection, paces: Sequence[int], *rest: Any, **options: Any):
        self._connection = connection
        self._paces = itertools.cycle(paces)
        self._gone = False
        super().__init__(*rest, **options)
        connection.writer.on_drained = self.resume

    def _write(self, frames: bytes) -> bool:
        return self._connection.writer(frames)

    def _writer(self) -> FrameWriter:
        return self._connection.writer

    def turn(self) -> None:
        if (pace := next(self._paces)) and not self._gone:
            self._connection.flush()
            self._connection.read(pace)
        super().turn()

    def left(self) -> list[bytes]:
        """The client leaves: the complete events that it has read."""
        self._gone = True
        self._connection.client.close()
        return body(bytes(self._connection.received)).split(b"\n\n")[:-1]

    def end(self, count: int, reason: Any = "stop") -> list[bytes]:
        super().end(count, reason)
        return self._connection.all_of_it().split(b"\n\n")


def folded(events: Sequence[bytes]) -> list[Any]:
    """The deltas in order, adjacent pieces of one text joined, and the finish reasons and usage."""
    found: list[Any] = []
    for event in events:
        document = event.removeprefix(b"data: ")
        if document[:1] != b"{":
            found.append(document)
            continue
        chunk = orjson.loads(document)
        for choice in chunk["choices"]:
            kind, text = _piece(choice["delta"])
            if kind and found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + text)
            else:
                found.append((kind, text if kind else choice))
        found.append((None, chunk["usage"])) if chunk["usage"] else None
    return found


def _piece(delta: dict[str, Any]) -> tuple[str, str]:
    match delta:
        case {"content": str(text)}:
            return "content", text
        case {"reasoning_content": text}:
            assert delta["reasoning"] == text
            return "reasoning", text
        case {"tool_calls": [{"index": index, "function": {"arguments": text, **rest}}]} if (
            not rest
        ):
            return f"arguments {index}", text
    return "", ""


def cut(text: str, lengths: Sequence[int]) -> Iterator[str]:
    """Pieces of these lengths, repeated."""
    at = 0
    while at < len(text):
        for length in lengths:
            if piece := text[at : at + length]:
                yield piece
            at += length


SAMPLES = [
    (path.stem, output) for path in samples.FILES + samples.HELD for output in samples.outputs(path)
]
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)
by_token = st.lists(st.integers(1, 3), min_size=1, max_size=6)  # tokens in each response
WITHIN = settings(
    max_examples=scaled(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def responses(text: str, lengths: Sequence[int], by_token: Sequence[int]) -> list[Tokens]:
    tokens, at = [*cut(text, lengths)], 0
    grouped: list[Tokens] = []
    while at < len(tokens):
        count = by_token[len(grouped) % len(by_token)]
        grouped.append(tokens[at : at + count])
        at += count
    return grouped


async def both(
    ask: Any,
    parsers: Sequence[FamilyParser],
    answers: Sequence[Tokens],
    turns: Sequence[bool] = (True,),
    tools: Tools = OFFERED,
    **options: Any,
) -> tuple[Reader, Relayed, list[bytes], list[bytes]]:
    """The streams without and with a relay; `turns` says after which responses the loop runs."""
    request = await ask()
    plain, relayed = (
        Reader(parsers[0], tools, **options),
        Relayed(request, parsers[1], tools, **options),
    )
    count = sum(map(len, answers))
    for number, tokens in enumerate(answers):
        plain.feed([CompletionDelta("".join(tokens), plain.ids(tokens))])
        relayed.put(tokens)
        if turns[number % len(turns)]:
            relayed.turn()
    return plain, relayed, plain.end(count), relayed.end(count)


async def compare(ask: Any, examples: Sequence[tuple[Any, ...]]) -> int:
    """Both streams of each (family, output, answers, turns, options); returns the tokens that were
    relayed.
    """
    relayed_tokens = 0
    for family, output, answers, turns, options in examples:
        parsers = [samples.parser_for(family, output) for _ in range(2)]
        _, relayed, expected, sent = await both(ask, parsers, answers, turns, **options)
        assert folded(expected) == folded(sent), (family, answers)
        relayed_tokens += relayed.relayed
    return relayed_tokens


def in_items(job: CompletionJob) -> StreamDriver:
    """The stream of /v1/responses."""
    echo = echoed(ResponsesRequest(input="x"), (), {})
    form = ItemForm(id="1", names=ToolNames())
    return events(ResponseJob(job=job, form=form, echo=echo))


def in_blocks(job: CompletionJob) -> StreamDriver:
    """The stream of /v1/messages."""
    return message_events(MessageJob(job=job))


@pytest.mark.parametrize("every", [1, 3])
async def test_relayed_text_is_in_the_blocks_of_a_message(ask, every):
    """Their rules hold, and their sum is the same as without a relay."""
    events, tokens = [0, 0], 0
    for family, output in SAMPLES:
        parsers = [samples.parser_for(family, output) for _ in range(2)]
        answers = [[character] for character in output["text"]]
        turns = [False] * (every - 1) + [True]
        _, reader, expected, sent = await both(ask, parsers, answers, turns, stream=in_blocks)
        streams = [b"\n\n".join(stream) for stream in (expected, sent)]
        plain, relayed = map(fold_message, streams)
        assert plain == relayed, family
        events = [events[at] + stream.count(b"event: ") for at, stream in enumerate(streams)]
        tokens += reader.relayed

    assert 0 < events[1] <= events[0]
    assert tokens > 1000


@pytest.mark.parametrize("every", [1, 3])
async def test_relayed_text_is_in_the_items_of_a_response(ask, every):
    """Their rules hold, and the last event has the same items as without a relay."""
    pieces, tokens = [0, 0], 0
    for family, output in SAMPLES:
        parsers = [samples.parser_for(family, output) for _ in range(2)]
        answers = [[character] for character in output["text"]]
        turns = [False] * (every - 1) + [True]
        _, reader, expected, sent = await both(ask, parsers, answers, turns, stream=in_items)
        plain, relayed = (read_stream(b"\n\n".join(stream)) for stream in (expected, sent))
        assert without_call_ids(plain.output) == without_call_ids(relayed.output), family
        pieces = [pieces[0] + plain.pieces, pieces[1] + relayed.pieces]
        tokens += reader.relayed

    assert 0 < pieces[1] <= pieces[0]
    assert tokens > 1000


def without_call_ids(items: Sequence[Any]) -> list[Any]:
    return [{name: item[name] for name in item if name != "call_id"} for item in items]


async def test_every_sample_gives_the_same_bytes(ask):
    """One character per response, and a turn of the loop after each: not even the frames differ."""
    relayed_of: dict[str, int] = {}
    for family, output in SAMPLES:
        parsers = [samples.parser_for(family, output) for _ in range(2)]
        answers = [[character] for character in output["text"]]
        _, relayed, expected, sent = await both(ask, parsers, answers)
        assert expected == sent, (family, output["name"])
        relayed_of[family] = relayed_of.get(family, 0) + relayed.relayed

    assert [family for family, tokens in relayed_of.items() if not tokens] == []


async def test_tokens_without_text_count(ask):
    """Special tokens have none; between two markers there may be nothing else."""
    for family, output in SAMPLES:
        parsers = [samples.parser_for(family, output) for _ in range(2)]
        pieces = [each for each in re.split(r"(<[^<>]*>)", output["text"]) if each.strip()]
        answers = [[each] for piece in pieces for each in (piece, "", "")]
        _, _, expected, sent = await both(ask, parsers, answers)
        assert folded(expected) == folded(sent), (family, output["name"])


TURNS = st.lists(st.booleans(), min_size=1, max_size=5)


@pytest.mark.slow
async def test_any_chunking_gives_the_same_stream(ask):
    """Tokens of any length, responses of several tokens, several responses per turn, answers that
    are cut off, and hidden reasoning.
    """
    examples: list[Any] = []

    @WITHIN
    @given(st.sampled_from(SAMPLES), lengths, by_token, TURNS, st.floats(0, 1), st.booleans())
    def collect(sample, lengths, by_token, turns, end, shown):
        family, output = sample
        text = output["text"][: int(end * len(output["text"])) or None]
        answers = responses(text, lengths, by_token)
        examples.append((family, output, answers, turns, {"include_reasoning": shown}))

    collect()
    assert await compare(ask, examples) > len(examples)


class Pace(NamedTuple):
    """How a client reads a stream, and when it ends."""

    turns: Sequence[bool]
    paces: Sequence[int]
    direct: bool  # with a socket, or only a transport, as over TLS
    reason: str  # why the engine ends it
    leaves: int | None  # the client, after so many responses; None: it stays


async def to_slow_client(
    ask: Any, family: str, output: dict[str, Any], answers: Sequence[Tokens], pace: Pace
) -> bool:
    """The stream has the same bytes as without a relay, or their beginning if the client leaves.
    Returns whether the writer had to wait.
    """
    connection = Connection(direct=pace.direct, high=1_000)
    connection.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    one, other = (samples.parser_for(family, output) for _ in range(2))
    plain, request = Reader(one, OFFERED), await ask()
    connected = Connected(connection, pace.paces, request, other, OFFERED)
    for number, tokens in enumerate(answers[: pace.leaves]):
        plain.feed([CompletionDelta("".join(tokens), plain.ids(tokens))])
        connected.put(tokens)
        if pace.turns[number % len(pace.turns)]:
            connected.turn()
    waited = connection.writer.paused
    if pace.leaves is None:
        expected = plain.end(len(answers), pace.reason)
        received = connected.end(len(answers), pace.reason)
        assert folded(expected) == folded(received), (family, answers)
    else:
        read = connected.left()
        written = b"".join(plain.sent).split(b"\n\n")
        assert begins(folded(read), folded(written)), (family, answers)
        for tokens in answers[pace.leaves :][:3]:  # before the server notices
            connected.put(tokens)
            connected.turn()
        connection.writer.close()
        request.stream.cancel()
        bytes_sent, requests_sent = connection.writer.body_bytes, len(connection.through_transport)
        connected.turn()
        assert connection.writer.body_bytes == bytes_sent
        assert len(connection.through_transport) == requests_sent
    connection.close()
    return waited


def begins(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether folded events are the beginning of others; the last text may be incomplete."""
    if not part:
        return True
    *same, (kind, last) = part
    other_kind, other = whole[len(same)]
    return (
        same == whole[: len(same)]
        and kind == other_kind
        and (other.startswith(last) if kind else last == other)
    )


@pytest.mark.slow
async def test_slow_clients_get_the_same_stream(ask):
    """At any pace, with a socket or only a transport, as over TLS; of an answer that ends anywhere,
    by a stop or its length, and up to any moment at which the client leaves.
    """
    examples: list[Any] = []

    @settings(WITHIN, max_examples=scaled(150))
    @given(
        st.sampled_from(SAMPLES),
        lengths,
        st.floats(0, 1),
        st.builds(
            Pace,
            TURNS,
            st.lists(st.sampled_from([0, 0, 300, 5_000]), min_size=1, max_size=4),
            st.booleans(),
            st.sampled_from(["stop", "length"]),
            st.none() | st.integers(0, 60),
        ),
    )
    def collect(sample, lengths, end, pace):
        family, output = sample
        text = output["text"][: int(end * len(output["text"])) or None]
        examples.append((family, output, [[each] for each in cut(text, lengths)], pace))

    collect()
    assert any([await to_slow_client(ask, *example) for example in examples])


MARKERS = ("<", "<t", "<tool_call", "<tool_call>", "</think>", "<think>", "<|im", "_end|>", "\n{")
PIECES = (*MARKERS, "\n", " ", "  \n", "a", "\u00e9", "\U0001f600", '{"', '"', "x" * 30, " " * 700)


@pytest.mark.slow
async def test_pieces_of_markers_give_the_same_stream(ask):
    """Text with beginnings of markers, and white space around them."""
    examples: list[Any] = []

    @WITHIN
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=30), by_token, TURNS)
    def collect(pieces, by_token, turns):
        for family in ("qwen3", "llama3_json", "command_r7b"):
            answers = responses("".join(pieces), [3], by_token)
            examples.append((family, {}, [["b"], *answers], turns, {}))
            examples.append((family, {}, [["b"], *([each] for each in pieces)], turns, {}))

    collect()
    assert await compare(ask, examples) > len(examples)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
# Replaced in valid JSON: mistakes that models make, and what only a parser may rewrite
MISTAKES = (*",}]{-'", "", "\n", "\t", "\\q", "\\u12", "nul", "01", "1.", "+1", "\x00")


@pytest.mark.slow
@pytest.mark.parametrize("escaped", [True, False])
async def test_any_arguments_give_the_same_stream(ask, escaped):
    """Any JSON object, and any with a mistake at any position."""
    examples: list[Any] = []

    @WITHIN
    @given(
        st.dictionaries(st.text(max_size=8), json_values, min_size=1),
        st.sampled_from(MISTAKES),
        st.floats(0, 1),
        st.booleans(),
        lengths,
        TURNS,
    )
    def collect(arguments, mistake, at, wrong, lengths, turns):
        text = json.dumps(arguments, ensure_ascii=escaped, indent=2 if wrong else None)
        text = text.encode("utf-8", "replace").decode()
        if wrong:
            position = int(at * len(text))
            text = text[:position] + mistake + text[position + 1 :]
        said = f'<tool_call>{{"name": "search", "arguments": {text}}}</tool_call> and more'
        answers = responses(said, lengths, [1])
        examples.append(("qwen3", {}, answers, turns, {}))

    collect()
    assert await compare(ask, examples) > len(examples)


JSON_TEXT = (
    '{"a": [1, {"b": "x\\n\u00e9", "c": null}, "y"], "d": {}, "e" : [ ], "f": -1.5e3 , "g": true '
)
NEXT = (*":{[]} x", '"z"', '"z": ', ", ", ',"k"', "1 ", "tru", "\\n", "\\", "\n")
HEAD = '<tool_call>{"name": "search", "arguments": '


async def passed(ask: Any, end: SegmentEnd, piece: str) -> str | None:
    """What a segment that begins there shows of a piece; None if it leaves it to the parser."""
    request = await ask()
    assert request.stream.relay_segments("text_output", request.write).begin([b"", b""], end)
    request.send(piece)
    request.turn()
    shown = "".join(map(orjson.loads, request.frames))
    return shown if request.taken() == [] else None


async def test_every_position_of_json_is_known(ask):
    """From each position, the rest is relayed, and any other piece only if the parser passes it on
    as it is.
    """
    positions = []
    for at in range(1, len(JSON_TEXT)):
        parser = samples.parser_for("qwen3", {})
        parser.feed(HEAD + JSON_TEXT[:at])
        segment = parser.segment()
        if segment is None:
            continue
        end = SegmentEnd(max_bytes=1000, json=segment.json)
        positions.append(at)
        assert await passed(ask, end, JSON_TEXT[at:]) == JSON_TEXT[at:], at
        for piece in NEXT:
            shown = await passed(ask, end, piece)
            if shown is not None:
                again = samples.parser_for("qwen3", {})
                again.feed(HEAD + JSON_TEXT[:at])
                expected = [ToolCallArguments(0, shown)] if shown else []
                assert expected == again.feed(piece), (JSON_TEXT[:at], piece)

    assert len(positions) > 0.7 * len(JSON_TEXT)


def call(arguments: str) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'


LIMITS = {
    "long text": "word " * 20_000,
    "long reasoning": "<think>" + "hm " * 20_000 + "</think>Hi",
    "long arguments": call('{"a": "' + "x" * (MAX_ARGUMENTS - 100) + '"}'),
    "arguments beyond their limit": call('{"a": "' + "x" * (MAX_ARGUMENTS + 100) + '"}'),
    "depth": call('{"a": ' + "[" * 300 + "]" * 300 + "}"),
    "white space": "Some words, and" + " " * 10_000 + "then more of them.",
    "a long number": call('{"a": "some text", "b": ' + "1" * 600 + "}"),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_limits_hold(ask, name):
    """Of a segment, of arguments, of nesting and of white space."""
    answers = responses(LIMITS[name], [7], [1])

    assert await compare(ask, [("qwen3", {}, answers, (False, False, True), {})]) > 0


@pytest.mark.parametrize(
    "tools",
    [
        Tools(functions=samples.TOOLS, choice="auto", allowed=OFFERED.allowed, parallel=False),
        Tools(functions=samples.TOOLS, choice="auto", allowed=OFFERED.allowed, legacy=True),
        Tools(
            functions=samples.TOOLS,
            choice="auto",
            allowed=OFFERED.allowed,
            custom={"search": CustomFormat()},
        ),
    ],
    ids=["one call", "function_call", "custom"],
)
async def test_other_forms_of_calls_give_the_same_stream(ask, tools):
    said = f"Hi {call(json.dumps({'input': 'some text' * 20}))} and {call(json.dumps({'a': 1}))}"
    parsers = [samples.parser_for("qwen3", {}) for _ in range(2)]

    _, _, expected, sent = await both(ask, parsers, responses(said, [4], [1]), tools=tools)

    assert expected == sent


async def test_tokens_without_text_of_their_own_count_as_reasoning(ask):
    """The relay counts the tokens of a segment, also those of responses with several."""
    parsers = [samples.parser_for("qwen3", {}) for _ in range(2)]
    answers = [["<think>"], ["a"], ["b", "c"], ["d"], ["e", "f", "g"], ["</think>"], ["Hi"]]

    _, relayed, expected, sent = await both(ask, parsers, answers)

    assert expected == sent
    usage = orjson.loads(sent[-3].removeprefix(b"data: "))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 8
    assert relayed.relayed > 5


async def test_segment_waits_for_earlier_responses(ask):
    """A segment does not begin while responses wait that the parser reads first."""
    request = await ask()
    relay = request.stream.relay_segments("text_output", request.write)
    request.send("first")

    assert not relay.begin([b"<", b">"], SegmentEnd(max_bytes=100, markers=("!",)))
    request.send("second")

    assert [each.item("text_output") for each in request.stream._native.take()] == [
        b"first",
        b"second",
    ]
    assert request.frames == []


async def test_nothing_is_relayed_between_two_segments(ask):
    """What ends a segment, and what follows, is left to the parser, after all of the segment."""
    request = await ask()
    relay = request.stream.relay_segments("text_output", request.write)
    assert relay.begin([b"<", b">"], SegmentEnd(max_bytes=100, markers=("!",)))
    request.send("a ", "b", " c!", "d")
    request.turn()

    responses = request.stream._native.take()

    assert [(each.item("text_output"), each.relayed) for each in responses] == [
        (b"a b", 2),
        (b" c!", 0),
        (b"d", 0),
    ]
    assert request.frames == [b'<"a b">']


@pytest.mark.parametrize("position", ["", "x", "vv"])
async def test_unknown_position_is_an_error(ask, position):
    request = await ask()
    relay = request.stream.relay_segments("text_output", request.write)

    with pytest.raises((ValueError, TypeError)):
        relay.begin([], SegmentEnd(max_bytes=100, json=("}", position)))
