"""Texts framed in native code: complete and in order."""

import asyncio
import select
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_frontend import errors
from openai_frontend.text_relay import NUMBER_SLOT, EventNumbers, SegmentEnd
from openai_frontend.triton import _core, error_codes, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import collect, text
from tests.core.triton.puppet import AFTER, BEFORE, Request, frame_texts, unframed
from tests.core.triton.waiting import until
from tests.examples import scaled

FRAME_BYTES = 16 * 1024  # of text, as UTF-8
NOT_UTF8 = [
    b"\xff",
    b"\x80",
    b"a\xc0\x80",  # overlong NUL
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",  # overlong
    b"\xf0\x8f\xbf\xbf",  # overlong
    b"\xed\xa0\x80",  # a surrogate
    b"\xed\xbf\xbf",
    b"\xf4\x90\x80\x80",  # beyond the last character
    b"\xf5\x80\x80\x80",
    b"\xc3",  # cut off
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xe2\x28\xa1",
    b"\xf0\x9f\x28\x80",
]
EDGES = [
    "\x7f",
    "\x80",
    "\u07ff",
    "\u0800",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
]
AWKWARD = 'a"\\/\b\f\n\r\t\0\x1b\x1f\x7f\x85é\u2028\u2029\ufeff😀' + "".join(EDGES)
texts = st.text(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]))


def readable(request: Request) -> bool:
    """Whether a response has woken the loop."""
    return bool(select.select([request._core.response_fd], [], [], 0)[0])


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a fresh core."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


# ---- frames ----


async def test_frame(ask):
    """A frame is the text as orjson encodes it, between prefix and suffix, in one piece."""
    request = await ask()
    request.relay()

    @settings(max_examples=scaled(400), deadline=None)
    @given(sent=texts.filter(bool))
    def check(sent: str) -> None:
        request.frames.clear()
        request.send(sent)
        request.turn()
        assert [BEFORE + orjson.dumps(sent) + AFTER] == request.frames

    check()
    assert request.taken() == []


def framed(*sent: str) -> bytes:
    return b"".join(BEFORE + orjson.dumps(each) + AFTER for each in sent)


@pytest.mark.parametrize("first", range(0, 0x110000, 0x22000))
async def test_every_character(ask, first):
    """Every character is encoded as by orjson, and never treated as invalid UTF-8."""
    request = await ask()
    request.relay()
    codes = (code for code in range(first, first + 0x22000) if not 0xD800 <= code < 0xE000)
    sent = "".join(map(chr, codes))

    request.send(sent)
    request.turn()

    [written] = request.frames
    texts = frame_texts(written)
    assert "".join(texts) == sent
    assert framed(*texts) == written


@pytest.mark.parametrize("character", ["a", "\n", "é", "€", "😀"])
@pytest.mark.parametrize("offset", range(4))
async def test_long_text(ask, character, offset):
    """A text over 16 KiB is one write of frames of the maximum length, cut between characters."""
    request = await ask()
    request.relay()
    sent = "x" * offset + character * 20_000

    request.send(sent)
    request.turn()

    [written] = request.frames
    texts = frame_texts(written)
    assert "".join(texts) == sent
    assert framed(*texts) == written
    lengths = [len(each.encode()) for each in texts]
    assert max(lengths) <= FRAME_BYTES
    assert min(lengths[:-1]) > FRAME_BYTES - len(character.encode())
    assert lengths[-1] > 0


async def test_text_of_exactly_one_frame(ask):
    """A text of exactly 16 KiB is one frame, without an empty one after it."""
    request = await ask()
    request.relay()

    request.send("a" * FRAME_BYTES)
    request.turn()

    assert request.frames == [framed("a" * FRAME_BYTES)]


async def test_texts_of_one_loop_iteration_are_one_frame(ask):
    """Text that arrives within one iteration of the event loop is one frame."""
    request = await ask()
    request.relay()

    request.send("a", '"', "😀", "")
    request.turn()
    request.send("b")
    request.turn()

    assert request.texts == ['a"😀', "b"]


async def test_empty_text_is_not_a_frame(ask):
    """An empty text creates no frame and wakes no task."""
    request = await ask()
    request.relay()

    request.send("")
    request.turn()

    assert (request.frames, request.taken()) == ([], [])


async def test_frame_without_a_wait(ask):
    """The loop writes frames even if no task waits for the iterator."""
    request = await ask()
    request.relay()
    request.send("a")

    await until(lambda: request.frames != [])

    assert request.texts == ["a"]


# ---- numbers ----

NUMBERED = b'{"number":' + NUMBER_SLOT + b',"text":', b"}\n"


def numbered(frames: Iterable[bytes]) -> list[tuple[int, str]]:
    """Number and text of each event."""
    events = [orjson.loads(line) for line in b"".join(frames).splitlines()]
    return [(event["number"], event["text"]) for event in events]


async def test_frames_and_other_events_share_the_numbers(ask):
    """Numbers rise in the order of the events, whoever writes them."""
    request, numbers = await ask(), EventNumbers()
    request.relay_numbered(NUMBERED, numbers)

    taken = [numbers.take()]
    request.send("a", "b")
    request.turn()
    request.send("c")
    request.turn()
    taken.append(numbers.take())
    request.send("d")
    request.turn()

    assert (numbered(request.frames), taken) == ([(1, "ab"), (2, "c"), (4, "d")], [0, 3])
    assert numbers.take() == 5


@pytest.mark.parametrize("around", [NUMBERED, (b'{"text":', b',"number":' + NUMBER_SLOT + b"}\n")])
async def test_each_frame_of_a_long_text_has_a_number(ask, around):
    """The slot may be on either side of the text."""
    request, numbers = await ask(), EventNumbers()
    request.relay_numbered(around, numbers)

    request.send("é" * FRAME_BYTES)
    request.turn()

    assert [number for number, _ in numbered(request.frames)] == [0, 1]
    assert "".join(text for _, text in numbered(request.frames)) == "é" * FRAME_BYTES


async def test_number_belongs_to_a_frame_once_it_is_written(ask):
    """A slow client's text becomes one frame, after the events that are written meanwhile."""
    request, numbers = await ask(), EventNumbers()
    resume = request.relay_numbered(NUMBERED, numbers)
    request.hold = True
    request.send("a")
    request.turn()
    request.send("b")
    request.turn()
    meanwhile = numbers.take()
    request.send("c")
    request.turn()
    request.hold = False
    resume()

    assert (numbered(request.frames), meanwhile) == ([(0, "a"), (2, "bc")], 1)


async def test_frames_of_segments_are_numbered(ask):
    """Each segment has constant parts of its own, and the numbers go on."""
    request, numbers = await ask(), EventNumbers()
    relay = request.stream.relay_segments("text_output", request.write, numbers)
    thought = b'{"text":', b',"number":' + NUMBER_SLOT + b"}\n"

    for around, sent in ((thought, "hm"), (NUMBERED, "yes")):
        assert relay.begin(around, SegmentEnd(max_bytes=100, markers=("<",)))
        request.send(sent, "<")
        request.turn()
        assert request.taken() == [sent.encode(), b"<"]

    assert numbered(request.frames) == [(0, "hm"), (1, "yes")]


async def test_text_with_the_byte_of_the_slot_is_unchanged(ask):
    """Within text, JSON escapes it; without numbers, a constant part may have it."""
    plain, request = await ask(), await ask()
    plain.relay_numbered((NUMBER_SLOT, NUMBER_SLOT), None)
    request.relay_numbered(NUMBERED, EventNumbers())

    for each in (plain, request):
        each.send("\1")
        each.turn()

    assert plain.frames == [NUMBER_SLOT + b'"\\u0001"' + NUMBER_SLOT]
    assert numbered(request.frames) == [(0, "\1")]


@pytest.mark.parametrize("wrong", [SimpleNamespace(), SimpleNamespace(next="7")])
async def test_numbers_that_cannot_be_read_end_the_stream(ask, wrong):
    """The iterator raises the error, and no frame is written."""
    request = await ask()
    request.relay_numbered(NUMBERED, wrong)
    request.send("a")
    request.turn()

    with pytest.raises((AttributeError, TypeError)):
        await anext(request.stream)
    assert request.frames == []


# ---- responses that are not relayed ----


@pytest.mark.slow
async def test_any_bytes(ask):
    """Bytes are relayed if Python decodes them as UTF-8; others go to the iterator."""
    request = await ask()
    request.relay()
    leads = b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"
    utf8_like = st.lists(st.sampled_from([bytes([byte]) for byte in leads]))

    @settings(max_examples=scaled(1000), deadline=None)
    @given(
        sent=st.binary(min_size=1, max_size=8)
        | utf8_like.map(b"".join).filter(bool)
        | st.sampled_from(NOT_UTF8)
    )
    def check(sent: bytes) -> None:
        request.frames.clear()
        try:
            expected: tuple[Any, Any] = ([sent.decode()], [])
        except UnicodeDecodeError:
            expected = ([], [sent])
        request.send(sent)
        request.turn()
        assert expected == (request.texts, request.taken())

    check()


def described(name: str, *values: bytes) -> tuple[str, str, tuple[int, ...], bytes]:
    return (name, *text(*values))  # type: ignore[return-value]  # a tensor's value may be bytes


NUMBER = ("number", "UINT32", (1,), b"\1\0\0\0")
OTHERS: dict[str, list[Any]] = {
    "another name": [described("other", b"x")],
    "two outputs": [described("text_output", b"x"), described("other", b"y")],
    "text and number": [described("text_output", b"x"), NUMBER],
    "number": [NUMBER],
    "other datatype": [("text_output", "UINT8", (5,), b"\1\0\0\0x")],
    "two elements": [described("text_output", b"x", b"y")],
    "no element": [("text_output", "BYTES", (0,), b"")],
    "a wrong length": [("text_output", "BYTES", (1,), b"\2\0\0\0x")],
    "no output": [],
}


@pytest.mark.parametrize("outputs", OTHERS.values(), ids=OTHERS)
async def test_more_than_a_text(ask, outputs):
    """A response with more than one text goes to the iterator, after earlier frames."""
    request = await ask()
    request.relay()

    request.send("a")
    request.execution.send(outputs)
    request.send("b")
    request.turn()
    frames = request.texts
    names = [response.names for response in request.stream._native.take()]

    assert ["a"] == frames == request.texts
    assert [[output[0] for output in outputs], ["text_output"]] == names


async def test_error_wakes_a_waiting_iterator(ask):
    """A waiting iterator sleeps during relayed texts until a response is for it."""
    request = await ask()
    request.relay()
    waiting = asyncio.create_task(collect(request.stream))

    request.send("a")
    await until(lambda: request.texts == ["a"])
    assert not waiting.done()
    request.send("b")
    request.execution.fail(error_codes.INTERNAL, "broken")
    with pytest.raises(errors.InferenceFailed, match="broken"):
        await waiting

    assert request.texts == ["a", "b"]


# ---- order ----


class Play:
    """A stream with random steps: what is sent, how it is delivered, and in which order."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sent: list[bytes] = []
        self.came: list[bytes] = []
        self.hold = False  # the writer's next result
        self.held = False  # the writer's last result
        self.resumed: Callable[[], None] | None = None

    def open(self) -> None:
        self.resumed = self.request.relay(self.write)

    def write(self, frame: bytes) -> bool:
        self.came.append(unframed(frame).encode())
        self.held = self.hold
        return self.hold

    def send(self, sent: bytes) -> None:
        self.sent.append(sent)
        self.request.send(sent)

    def other(self) -> None:
        self.sent.append(b"<other>")
        self.request.execution.send([described("other", b"<other>")])

    def turn(self) -> None:
        held, before = self.held, len(self.came)
        self.request.turn()
        assert not held or before == len(self.came)

    def take(self) -> None:
        responses = self.request.stream._native.take()
        self.came += [each.item("text_output") or each.item("other") for each in responses]

    def may_hold(self) -> None:
        self.hold = True

    def resume(self) -> None:
        self.hold = self.held = False
        if self.resumed is not None:
            self.resumed()


STEPS = [Play.turn, Play.turn, Play.take, Play.may_hold, Play.resume, Play.other]
sendings = (texts.filter(bool).map(str.encode) | st.just(b"\xff")).map(
    lambda sent: lambda play: play.send(sent)
)
steps = st.lists(st.sampled_from(STEPS) | sendings, max_size=40)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
async def test_any_order(ask, late):
    """For any order of sends, holds, resumes and reads, frames and iterator together give every
    text once, in the order sent.
    """
    request = await ask()

    @settings(max_examples=scaled(500), deadline=None)
    @given(early=steps if late else st.just([]), steps=steps)
    def check(early: list[Callable[[Play], None]], steps: list[Callable[[Play], None]]) -> None:
        play = Play(request)
        for step in early:
            step(play)
        play.open()
        for step in [*steps, Play.resume, Play.turn, Play.take]:
            step(play)
        request.stream._native.stop_relay()
        assert b"".join(play.came) == b"".join(play.sent)

    check()


async def test_sent_while_a_frame_is_written(ask):
    """Text that arrives while the writer runs follows its frame, and so does the end."""
    request = await ask()
    order: list[Any] = []

    def write(frame: bytes) -> bool:
        order.append(unframed(frame))
        if order == ["a"]:
            request.send("b")
            request.execution.send_bytes("text_output", "end", True)
        return False

    request.relay(write)
    request.send("a")
    async for burst in request.stream:
        order.extend(response.item("text_output") for response in burst)

    assert order == ["a", "b", b"end"]


async def test_engines_on_threads(ask):
    """Engines that send from their own threads lose nothing and keep the order."""
    requests = [await ask() for _ in range(4)]
    sent = [b"\xff" if number % 7 == 0 else f"{number};".encode() for number in range(2000)]

    def work(execution: _core.Execution) -> None:
        for each in sent:
            execution.send_bytes("text_output", each)
        execution.send_bytes("text_output", b"end", True)

    async def follow(request: Request) -> bytes:
        came: list[bytes] = []

        def write(frame: bytes) -> bool:
            came.append(unframed(frame).encode())
            return False

        request.relay(write)
        async for burst in request.stream:
            came.extend(response.item("text_output") for response in burst)
        return b"".join(came)

    threads = [asyncio.to_thread(work, request.execution) for request in requests]
    followed, _ = await asyncio.gather(
        asyncio.gather(*map(follow, requests)), asyncio.gather(*threads)
    )

    assert [b"".join([*sent, b"end"])] * 4 == followed


async def test_responses_of_a_step_are_written_at_its_end(ask):
    """Also if it raises, and whatever its streams; nothing is left for the next wake-up."""
    one, other = await ask(), await ask()
    one.relay()
    other.relay()

    def step(*texts: str) -> str:
        for each in texts:
            one.send(each)
            other.send(each.upper())
        assert not one.frames
        return "done"

    def failing_step() -> None:
        one.send("c")
        raise RuntimeError("the step failed")

    assert _core.run_step(step, "a", "b") == "done"
    assert (one.texts, other.texts) == (["ab"], ["AB"])
    with pytest.raises(RuntimeError, match="the step failed"):
        _core.run_step(failing_step)
    assert one.texts == ["ab", "c"]
    assert not readable(one)
    one.send("d")
    assert readable(one)


async def test_step_in_a_step(ask):
    """Only the end of the outer one writes."""
    request = await ask()
    request.relay()

    def outer() -> None:
        request.send("a")
        _core.run_step(request.send, "b")
        assert request.texts == []

    _core.run_step(outer)
    assert request.texts == ["ab"]


async def test_step_wakes_the_iterator(ask):
    """What is not relayed, and the end, without a wake-up by Triton's threads."""
    request = await ask()
    came = asyncio.ensure_future(request.stream.__anext__())
    await asyncio.sleep(0)

    _core.run_step(request.send, "a")
    assert not readable(request)
    [response] = await asyncio.wait_for(came, 10)
    assert response.item("text_output") == b"a"


async def test_steps_beside_threads(ask):
    """Streams of steps and of threads lose nothing, although only some responses wake the loop."""
    requests = [await ask() for _ in range(4)]
    for request in requests:
        request.relay()
    sent = [f"{number};" for number in range(2000)]

    def work(request: Request) -> None:
        for each in sent:
            request.send(each)

    async def steps(request: Request) -> None:
        for each in sent:
            _core.run_step(request.send, each)
            if len(each) % 2:
                await asyncio.sleep(0)

    threads = [asyncio.to_thread(work, request) for request in requests[:2]]
    await asyncio.gather(*threads, *map(steps, requests[2:]))
    for request in requests:
        request.execution.finish()
        [last] = await collect(request.stream)
        assert last.final

    assert ["".join(request.texts) for request in requests] == ["".join(sent)] * 4


async def test_responses_are_counted_on_every_path(ask):
    """A stream counts all responses received: returned, relayed, and buffered for a slow client."""
    request = await ask()
    request.send("one")
    assert request.stream._native.received == 1
    assert request.taken() == [b"one"]

    request.relay()
    request.send("two", "three")
    assert request.stream._native.received == 3
    request.hold = True
    request.turn()
    request.send("four")

    assert request.stream._native.received == 4


# ---- counts ----


async def test_counts_of_texts_and_writes(ask):
    """Texts of one loop iteration leave in one write; both are counted."""
    before = _core.relay_counts()
    request = await ask()
    request.relay()
    request.send("a")
    request.send("b")
    request.turn()
    request.send("c")
    request.turn()

    counted = {name: count - before[name] for name, count in _core.relay_counts().items()}
    assert counted == {"texts": 3, "writes": 2}


async def test_log_probabilities_of_a_shape_that_overflows(ask):
    """Their bytes do not match it, so they are not relayed."""
    request = await ask()
    request.stream.relay_logprobs("text_output", 1, (BEFORE, b"", AFTER), 0, request.write)
    shape = (1, (1 << 62) + 2)  # in 64 bits, as many bytes as two elements

    request.execution.send(
        [
            ("text_output", *text("a")),
            ("logprob_tokens", "INT32", shape, bytes(8)),
            ("logprob_values", "FP64", shape, bytes(16)),
        ]
    )

    assert (request.taken(), request.frames) == ([b"a"], [])
