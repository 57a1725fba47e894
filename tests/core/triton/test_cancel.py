import asyncio
import gc

import pytest

from openai_frontend import errors
from openai_frontend.admission.deferred_release import DeferredRelease
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.triton import _core, inprocess
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.engines.failing_engines import FailsInCancel, NeverEnds
from tests.core.triton.generation_inputs import collect, count, generate, generation
from tests.core.triton.waiting import until

IDLE = {"requests": 0, "responses": 0, "buffers": 0, "executions": 0}


@pytest.fixture
async def slow(repository, start_server):
    """A core whose model `mock` sends a token every 10 ms."""
    mock_models.write(repository, "mock", tokens_per_second=100)
    return await start_server()


@pytest.fixture
async def endless(repository, start_server):
    """A core whose model `mock` sends two tokens and then nothing."""
    NeverEnds.cancelled = NeverEnds.running = 0
    mock_models.write(repository, "mock", config=failing_engines.config("NeverEnds"))
    return await start_server()


async def until_idle():
    await until(lambda: _core.live_counts() == IDLE)


def running(server):
    """The number of requests that the mock works on."""
    return inprocess.handle("mock")._engine.stats().running


async def test_cancel_before_the_first_response(slow):
    """A request that is cancelled before the first response ends as cancelled."""
    stream = generate(slow, 1000)
    stream.cancel()

    with pytest.raises(errors.RequestCancelled):
        await collect(stream)


async def test_cancel_midway(slow):
    """A stream that is cancelled midway ends as cancelled, and its engine stops within a step."""
    stream = generate(slow, 1000)
    await anext(stream)
    stream.cancel()

    with pytest.raises(errors.RequestCancelled):
        await collect(stream)
    assert running(slow) == 0


async def test_cancel_after_the_end(slow):
    """A cancel after the end changes nothing."""
    stream = generate(slow, 2)
    await collect(stream)
    stream.cancel()

    assert await collect(stream) == []


async def test_cancel_twice(slow):
    """A second cancel changes nothing."""
    stream = generate(slow, 1000)
    await anext(stream)
    stream.cancel()
    stream.cancel()

    with pytest.raises(errors.RequestCancelled):
        await collect(stream)


async def test_no_cancel_is_lost(server):
    """A cancellation works wherever the request is at that moment, even on its way to the
    backend.
    """
    for _ in range(600):
        stream = generate(server, 4000)
        stream.cancel()
        inprocess._on_executions()  # what the loop might do at that moment
        with pytest.raises(errors.RequestCancelled):
            await collect(stream)


async def test_cancel_reaches_a_coroutine(endless):
    """An engine's coroutine is cancelled when the caller leaves."""
    stream = generate(endless, 10)
    await anext(stream)
    stream.cancel()
    with pytest.raises(errors.RequestCancelled):
        await collect(stream)
    await asyncio.sleep(0)

    assert (NeverEnds.cancelled, NeverEnds.running) == (1, 0)


async def test_dropped_stream(slow):
    """A stream without references is cancelled."""
    stream = generate(slow, 1000)
    await anext(stream)
    del stream
    gc.collect()
    await until_idle()

    assert running(slow) == 0


async def test_unread_stream(slow):
    """A stream that is dropped unread is cancelled."""
    generate(slow, 1000)
    gc.collect()

    assert await until_idle() is None


async def test_cancelled_waiting_task(endless):
    """Cancelling a waiting consumer cancels its request."""
    waiting = asyncio.create_task(collect(generate(endless, 10)))
    await until(lambda: NeverEnds.running == 1)
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    gc.collect()

    assert await until_idle() is None


async def test_unreferenced_waiting_task(endless):
    """A waiting consumer without references is collected together with its stream."""
    loop = asyncio.get_running_loop()
    seen = []
    loop.set_exception_handler(lambda _, context: seen.append(context["message"]))
    waiting = loop.create_task(collect(generate(endless, 10)))
    await until(lambda: NeverEnds.running == 1)
    del waiting
    # The loop refers to a task that is scheduled: it is collected once it waits again.
    await until(lambda: gc.collect() >= 0 and _core.live_counts() == IDLE)

    assert seen == ["Task was destroyed but it is pending!"]


async def test_one_cancel_among_many(slow):
    """Other streams continue to their end."""
    others = [asyncio.create_task(count(generate(slow, 10))) for _ in range(8)]
    stream = generate(slow, 1000)
    await anext(stream)
    stream.cancel()
    with pytest.raises(errors.RequestCancelled):
        await collect(stream)

    assert await asyncio.gather(*others) == [10] * 8


async def test_many_cancels(slow):
    """Many streams can be cancelled at once."""
    streams = [generate(slow, 1000) for _ in range(64)]
    for stream in streams:
        stream.cancel()
    ended = await asyncio.gather(*map(collect, streams), return_exceptions=True)

    assert {type(error) for error in ended} == {errors.RequestCancelled}


async def test_engine_that_fails_in_cancel(repository, start_server):
    """An exception in an engine's `cancel` affects only its request."""
    FailsInCancel.requests = FailsInCancel.cancels = 0
    mock_models.write(repository, "mock", config=failing_engines.config("FailsInCancel"))
    server = await start_server()
    stream = server.infer("mock", generation())
    await until(lambda: FailsInCancel.requests == 1)
    stream.cancel()

    async with asyncio.timeout(30):
        with pytest.raises((errors.RequestCancelled, errors.InferenceFailed)):
            await collect(stream)
    assert (FailsInCancel.cancels, server.is_live()) == (1, True)


class Observer:
    """Records what is retained and released."""

    def __init__(self):
        self.noted = []

    def retain(self, model_name, input_bytes):
        self.noted.append((model_name, input_bytes))

    def release(self, model_name, input_bytes):
        self.noted.remove((model_name, input_bytes))


@pytest.fixture
def observer(slow):
    slow.unreleased.observers.append(Observer())
    return slow.unreleased.observers[0]


async def test_retained_until_the_release(slow, observer):
    """A cancelled request counts, with the bytes of its inputs, until Triton releases it."""
    stream = generate(slow, 1000)
    await anext(stream)
    stream.cancel()
    stream.cancel()

    [(model_name, input_bytes)] = observer.noted
    assert (model_name, input_bytes > 0) == ("mock", True)
    await until(lambda: not observer.noted)


async def test_abandoned_request(slow, observer):
    """Its release is not awaited, whether it is abandoned before or after the cancellation."""
    before, after = generate(slow, 1000), generate(slow, 1000)
    before.abandon()
    before.cancel()
    after.cancel()
    after.abandon()

    assert observer.noted == []
    await until(lambda: not _core.live_counts()["requests"])
    assert observer.noted == []


async def test_finished_request(slow, observer):
    """Nothing is retained."""
    stream = generate(slow, 2)
    await collect(stream)
    stream.cancel()

    assert observer.noted == []


async def test_core_that_stops(slow, observer):
    """Nothing stays retained."""
    generate(slow, 1000).cancel()
    await slow.stop()

    assert observer.noted == []


async def test_lease(slow):
    """It is retained until Triton has released all cancelled requests of its own client."""
    current.set(RequestContext("own", deferred_release=(own := DeferredRelease())))
    streams = [generate(slow, 1000) for _ in range(2)]
    current.set(RequestContext("other", deferred_release=(other := DeferredRelease())))
    for stream in streams:
        stream.cancel()
    ended = []
    own.when_released(lambda: ended.append(own))
    other.when_released(lambda: ended.append(other))

    assert ended == [other]
    await until(lambda: ended == [other, own])
