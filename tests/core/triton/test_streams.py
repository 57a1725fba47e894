import asyncio
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.triton import _core
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.triton.generation_inputs import collect, count, generate, generation
from tests.core.triton.waiting import until


async def texts(stream):
    return [response.item("text_output") for response in await collect(stream)]


async def test_responses_are_in_order(repository, start_server):
    """The responses of a stream arrive in the order in which the model sent them."""
    tokens = [f"{number};" for number in range(100)]
    mock_models.write(repository, "mock", tokens=tokens)
    server = await start_server()

    assert await texts(generate(server, 100)) == [token.encode() for token in tokens]


async def test_burst_is_returned_in_one_step(repository, start_server):
    """Responses that arrive between steps are returned in one step of at least one response."""
    mock_models.write(repository, "mock")
    server = await start_server()
    stream = generate(server, 50)
    await until(lambda: stream._native.finished)

    assert [len(burst) async for burst in stream] == [50]


@pytest.mark.parametrize("rate", [2_000, 20_000, 50_000])
async def test_steps_are_never_empty(repository, start_server, rate):
    """A wake-up for responses that were already read is not a step."""
    mock_models.write(repository, "mock", tokens_per_second=rate)
    server = await start_server()

    async def bursts():
        return [len(burst) async for burst in generate(server, 200)]

    for lengths in await asyncio.gather(*(bursts() for _ in range(8))):
        assert (sum(lengths), min(lengths) >= 1) == (200, True)


async def test_final_response_ends_the_stream(server):
    responses = await collect(generate(server, 4))

    assert [response.final for response in responses] == [False, False, False, True]


async def test_iterating_over_an_ended_stream(server):
    """It ends at once."""
    stream = generate(server, 3)
    await collect(stream)

    assert await collect(stream) == []


async def test_streams_interleave(repository, start_server):
    """A stream that begins later ends first if it is shorter."""
    mock_models.write(repository, "mock", tokens_per_second=500)
    server = await start_server()
    long = generate(server, 10_000)
    assert len(await anext(long)) < 10_000
    assert await count(generate(server, 10)) == 10
    assert not long._native.finished


@pytest.mark.parametrize(("in_steps", "most"), [(True, 0), (False, 100)])
async def test_one_wake_up_serves_many_streams(
    repository, start_server, monkeypatch, in_steps, most
):
    """The loop wakes up once for a burst over many streams, not once per response; not at all for
    responses of a step.
    """
    mock_models.write(repository, "mock", tokens_per_second=200)
    drains = 0
    server = await start_server()
    if not in_steps:
        monkeypatch.setattr(_core, "run_step", lambda step, *arguments: step(*arguments))

    def counted():
        nonlocal drains
        drains += 1
        server._core.drain()

    asyncio.get_running_loop().add_reader(server._core.response_fd, counted)
    totals = await asyncio.gather(*(count(generate(server, 10)) for _ in range(40)))

    assert sum(totals) == 400
    assert drains <= most
    assert in_steps or drains >= 10


async def test_sixty_four_streams(server):
    """Each of many concurrent streams gets all its responses."""
    totals = await asyncio.gather(*(count(generate(server, 50)) for _ in range(64)))

    assert totals == [50] * 64


async def test_error_comes_after_earlier_responses(repository, start_server):
    """If the engine fails midway, earlier responses are returned first, then the error."""
    mock_models.write(repository, "mock", fail_after_tokens=3)
    server = await start_server()
    got: list[Any] = []

    with pytest.raises(errors.InferenceFailed, match=r"^the mock request failed, as configured$"):
        await collect(generate(server, 10), got)
    assert len(got) == 3


async def test_error_is_raised_once(repository, start_server):
    """A stream that has raised its error ends at the next step."""
    mock_models.write(repository, "mock", fail_after_tokens=0)
    server = await start_server()
    stream = generate(server, 10)
    with pytest.raises(errors.InferenceFailed):
        await collect(stream)

    assert await collect(stream) == []


FAILURES = {
    "RaisesAtOnce": (errors.InferenceFailed, "^KeyError: 'lost'$"),
    "RaisesUnprintably": (errors.InferenceFailed, "Unprintable"),
    "RaisesAfterTwo": (errors.ModelUnavailable, "^three is too many$"),
    "EndsWithoutFinish": (errors.InferenceFailed, "without a finish reason$"),
    "DropsTheSink": (errors.InferenceFailed, "^the engine dropped the request without a response$"),
    "CancelsItself": (errors.InferenceFailed, "without a response$"),
}


@pytest.mark.parametrize(("engine", "failure"), FAILURES.items(), ids=FAILURES)
async def test_failing_engine(repository, start_server, engine, failure):
    """Its client gets a clear error, and the server continues."""
    mock_models.write(repository, "bad", config=failing_engines.config(engine))
    mock_models.write(repository, "good")
    server = await start_server()
    error, message = failure

    async with asyncio.timeout(30):
        with pytest.raises(error, match=message):
            await collect(server.infer("bad", generation()))
    assert await count(generate(server, 3, model="good")) == 3


async def test_responses_after_the_end(repository, start_server):
    """They are dropped."""
    mock_models.write(repository, "mock", config=failing_engines.config("SendsTooMuch"))
    server = await start_server()

    assert await texts(generate(server, 5)) == [b"all"]


async def test_failing_request_among_others(repository, start_server):
    """A failing request does not affect concurrent ones."""
    mock_models.write(repository, "mock", tokens_per_second=500)
    server = await start_server()
    good = [asyncio.create_task(count(generate(server, 20))) for _ in range(4)]
    with pytest.raises(errors.InvalidRequest):
        await collect(server.infer("mock", generation(banana=1)))

    assert await asyncio.gather(*good) == [20] * 4


async def test_memory_of_responses_is_freed(server):
    """Responses without references are freed: a stream needs memory for one burst only."""
    most = 0
    async for burst in generate(server, 500):
        del burst
        most = max(most, _core.live_counts()["responses"])

    assert most < 10
