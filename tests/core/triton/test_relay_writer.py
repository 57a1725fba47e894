"""Writers of frames that pause, fail, or are not needed."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from openai_frontend import errors
from openai_frontend.triton import ResponseStream, StreamWriter, _core, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import collect
from tests.core.triton.puppet import AFTER, BEFORE, Puppet, unframed
from tests.core.triton.waiting import until


@pytest.fixture
async def puppet_server(start_server, monkeypatch):
    """A fresh core, whose in-process models are puppets."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    return await start_server()


@pytest.fixture
async def ask(puppet_server):
    """Sends a request."""
    async with puppet.model(puppet_server) as asked:
        yield asked


async def test_stream_writer_whose_transport_fails(ask):
    """Its exception ends the stream, like that of any other writer."""
    request = await ask()

    def write(data: bytes) -> None:
        raise ValueError("no transport")

    writer = StreamWriter(1 << 20, print)
    writer.open(write, int)
    request.relay(writer)
    request.send("a")
    request.turn()

    with pytest.raises(ValueError, match="no transport"):
        await collect(request.stream)


# ---- hold ----


async def test_paused_writer(ask):
    """It gets nothing until it resumes, and then all later text as one frame."""
    request = await ask()
    request.hold = True
    resume = request.relay()

    for sent in "abc":
        request.send(sent)
        request.turn()
    held, request.hold = request.texts, False
    resume()
    request.send("d")
    request.turn()

    assert (held, request.texts) == (["a"], ["a", "bc", "d"])


async def test_text_beyond_a_limit_is_not_gathered(ask):
    """A paused writer gets it, since what waits there is bounded."""
    request = await ask()
    request.hold = True
    request.relay()

    for sent in ("a", "b" * 65_535, "c", "d"):
        request.send(sent)
        request.turn()

    assert request.texts == ["a", "b" * 65_535 + "c"]


async def test_redundant_resumes(ask):
    """Resuming a writer that is not paused, twice, or after the end changes nothing."""
    request = await ask()
    resume = request.relay()

    resume()
    request.send("a")
    request.turn()
    resume()
    resume()
    request.execution.finish()
    await collect(request.stream)
    resume()
    request.stream.cancel()
    resume()

    assert request.texts == ["a"]


async def test_resume_inside_the_writer(ask):
    """A writer that resumes and then returns True is paused nevertheless, until the end."""
    request = await ask()

    def write(frame: bytes) -> bool:
        request.frames.append(frame)
        resume()
        return True

    resume = request.relay(write)
    request.send("a")
    request.turn()
    request.send("b")
    request.turn()
    held = request.texts
    request.execution.finish()
    await collect(request.stream)

    assert (held, request.texts) == (["a"], ["a", "b"])


# ---- writers that fail ----


class Broken(Exception):
    pass


def breaks(frame: bytes) -> bool:
    raise Broken(unframed(frame))


async def test_writer_that_raises(ask):
    """The iterator raises the writer's exception once; later responses go to the iterator."""
    request, other = await ask(), await ask()
    request.relay(breaks)
    other.relay()
    waiting = asyncio.create_task(collect(request.stream))
    await asyncio.sleep(0)

    request.send("a")
    other.send("b")
    with pytest.raises(Broken, match=r"^a$"):
        await waiting
    request.send("c")
    request.execution.finish()
    other.send("d")
    other.turn()

    assert other.texts == ["b", "d"]
    texts = [response.item("text_output") for response in await collect(request.stream)]
    assert texts == [b"c", None]


async def test_writer_that_raises_while_no_task_waits(ask):
    """The next step of the iterator raises it, before any other response."""
    request = await ask()
    request.relay(breaks)

    request.send("a", b"\xff")
    request.turn()
    with pytest.raises(Broken):
        await anext(request.stream)

    assert request.taken() == [b"\xff"]


async def test_writer_that_raises_at_the_end(ask):
    """If a writer fails with the last text, its exception replaces the end."""
    request = await ask()
    request.relay(breaks)

    request.send("a")
    request.execution.finish()
    with pytest.raises(Broken):
        await collect(request.stream)

    assert [response.final for response in await collect(request.stream)] == [True]


async def test_writer_that_raises_when_it_is_resumed(ask):
    """The waiting iterator gets the exception, not the caller of resume."""
    request = await ask()

    def write(frame: bytes) -> bool:
        request.frames.append(frame)
        return request.texts == ["a"] or breaks(frame)

    resume = request.relay(write)
    waiting = asyncio.create_task(collect(request.stream))
    await asyncio.sleep(0)
    for sent in "ab":
        request.send(sent)
        request.turn()
    resume()

    with pytest.raises(Broken, match=r"^b$"):
        await waiting


@pytest.mark.parametrize("answer", [None, 0, "no"], ids=repr)
async def test_writer_that_does_not_return_a_bool(ask, answer):
    """It does not block other streams' frames."""
    request, other = await ask(), await ask()
    request.relay(lambda frame: answer)
    other.relay()

    request.send("a")
    other.send("b")
    request.turn()

    assert other.texts == ["b"]


async def test_writer_that_cancels(ask):
    """A writer may cancel its stream; nothing is written afterwards."""
    request = await ask()

    def write(frame: bytes) -> bool:
        request.frames.append(frame)
        request.stream.cancel()
        return False

    request.relay(write)
    request.send("a")
    request.turn()
    request.send("b")
    request.turn()
    with pytest.raises(errors.RequestCancelled):
        await collect(request.stream)

    assert (request.texts, Puppet.cancelled) == (["a"], 1)


async def test_writer_that_drops_its_stream(ask):
    """A writer may drop the last reference to its stream, which ends the request."""
    request = await ask()
    seen = []

    def write(frame: bytes) -> bool:
        seen.append(frame)
        del request.stream
        return False

    request.relay(write)
    request.send("a")
    request.turn()
    gc.collect()
    request.execution.send_bytes("text_output", "b")
    request.turn()

    assert seen == [BEFORE + b'"a"' + AFTER]
    await until(lambda: Puppet.cancelled == 1)


async def test_writer_that_reads_its_stream(ask):
    """A writer may read from its stream and gets the responses that are not texts."""
    request = await ask()
    taken = []

    def write(frame: bytes) -> bool:
        request.frames.append(frame)
        taken.extend(request.taken())
        return False

    request.relay(write)
    request.send("a", b"\xff")
    request.turn()

    assert (request.texts, taken, request.taken()) == (["a"], [b"\xff"], [])


async def test_writer_that_is_replaced(ask):
    """A writer may install another writer."""
    request = await ask()

    def first(frame: bytes) -> bool:
        request.frames.append(b"first " + frame)
        request.relay()
        return False

    request.relay(first)
    for sent in "ab":
        request.send(sent)
        request.turn()

    assert request.frames == [b"first " + BEFORE + b'"a"' + AFTER, BEFORE + b'"b"' + AFTER]


async def test_writer_replaced_before_it_wrote(ask):
    """Text that arrived for a replaced writer goes to its replacement."""
    request = await ask()
    request.relay(lambda frame: False)
    request.send("a")

    request.relay()
    request.send("b")
    request.turn()

    assert "".join(request.texts) == "ab"


# ---- cancellation and cleanup ----


async def test_cancel_midway(ask):
    """Nothing is written after a cancel, neither earlier nor later text."""
    request = await ask()
    resume = request.relay()
    request.send("a")
    request.turn()
    request.send("b")

    request.stream.cancel()
    request.turn()
    resume()
    with pytest.raises(errors.RequestCancelled):
        await collect(request.stream)

    assert request.texts == ["a"]


async def test_text_gathered_before_the_consumer_is_cancelled(ask):
    """A held writer gets it before the consumer's cleanup, which may write an error."""
    request = await ask()
    request.hold = True
    request.relay()

    async def consume():
        try:
            async for _ in request.stream:
                pass
        finally:
            request.stream.cancel()

    consumer = asyncio.create_task(consume())
    request.send("a")
    await until(lambda: request.texts == ["a"])
    request.send("b")
    consumer.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await consumer

    assert request.texts == ["a", "b"]


async def test_stop_midway(ask, puppet_server):
    """A stopping server ends a relayed stream with its reason, after the earlier text."""
    request = await ask()
    request.relay()
    waiting = asyncio.create_task(collect(request.stream))
    request.send("a")
    await until(lambda: request.frames != [])

    await puppet_server.stop()

    with pytest.raises(errors.ModelUnavailable, match="stopping"):
        await waiting
    assert request.texts == ["a"]


async def test_stream_and_writer_in_a_reference_cycle(ask):
    """A dropped stream is collected with its writer, although each refers to the other."""
    request = await ask()

    class Writer:
        def __init__(self, stream: ResponseStream) -> None:
            self.stream = stream

        def write(self, frame: bytes) -> bool:
            return False

    writer = Writer(request.stream)
    gone = weakref.ref(writer)
    request.relay(writer.write)
    request.send("a")
    request.turn()
    request.send("b")
    del writer, request.stream
    gc.collect()

    assert gone() is None
    await until(lambda: Puppet.cancelled == 1)


async def test_failure_of_a_dropped_stream(ask):
    """An exception whose traceback refers to its stream does not keep it alive."""
    request = await ask()
    request.relay(lambda frame, stream=request.stream: breaks(frame))
    request.send("a")
    request.turn()
    gone = weakref.ref(request.stream)
    del request.stream
    gc.collect()

    assert gone() is None


async def test_responses_are_released(ask):
    """A relayed text leaves neither response nor buffer behind."""
    request = await ask()
    request.relay()

    request.send(*["a"] * 1000)

    counts = _core.live_counts()
    assert (counts["responses"], counts["buffers"]) == (0, 0)
    assert counts["requests"] == 1
