import asyncio
from contextlib import aclosing

import pytest

from openai_frontend.errors import ServerOverloaded
from openai_frontend.generation import GenerationRequest
from openai_frontend.serving.admission import Admission
from tests.serving.fake_model import FakeModel

REQUEST = GenerationRequest(request_id="1")


async def test_one_too_many():
    """While all places are taken, the next generation is refused and not begun."""
    admission, model = Admission(2), FakeModel()
    async with aclosing(
        admission.bursts([model.generate(REQUEST), model.generate(REQUEST)])
    ) as two:
        await anext(two)
        third = FakeModel()

        with pytest.raises(ServerOverloaded):
            await anext(admission.bursts([third.generate(REQUEST)]))

    assert third.requests == []


async def test_more_than_there_is_room_for():
    """A call that wants more places than there are runs a few at a time, and all in the end."""
    admission, model = Admission(2), FakeModel()
    generations = [model.generate(REQUEST) for _ in range(5)]

    most, finished = 0, set()
    async for bursts in admission.bursts(generations):
        most = max(most, model.open)
        finished |= {choice for choice, deltas in bursts if deltas[-1].finish_reason}

    assert (most, finished) == (2, {0, 1, 2, 3, 4})


async def test_place_is_given_back():
    """A generation that ends makes room for the next."""
    admission, model = Admission(1), FakeModel()

    counts = [admission.running async for _ in admission.bursts([model.generate(REQUEST)])]

    assert counts == [1, 1]
    assert admission.running == 0


async def test_place_of_a_failure_is_given_back():
    """A generation that fails makes room for the next."""
    admission, model = Admission(1), FakeModel(failure=ValueError("broken"))

    with pytest.raises(ValueError, match="broken"):
        async for _ in admission.bursts([model.generate(REQUEST)]):
            pass

    assert admission.running == 0


async def test_one_generation_passes_through():
    """A single generation's bursts come as they are, each as choice 0, without a task."""
    model, tasks = FakeModel(), len(asyncio.all_tasks())

    bursts = [burst async for burst in Admission(1).bursts([model.generate(REQUEST)])]

    assert [choice for burst in bursts for choice, _ in burst] == [0] * len(bursts)
    assert tasks == len(asyncio.all_tasks())


async def test_a_model_may_have_fewer_places():
    """They are the server's too: who is refused by either waits for nothing, and both count."""
    admission, small = Admission(3), FakeModel()
    small.max_streams = 2
    own = admission.of(small)
    with own.room(5) as granted:
        assert (granted, own.running, admission.running) == (2, 2, 2)
        with pytest.raises(ServerOverloaded, match="The model runs 2 requests, and takes 2"):
            own.room(1).__enter__()
        with admission.of(FakeModel()).room(5) as others:
            assert others == 1

    assert (own.running, admission.running) == (0, 0)
    assert admission.of(small) is own


async def test_a_model_finds_the_server_full():
    """Then its own places are not taken either."""
    admission, small = Admission(1), FakeModel()
    small.max_streams = 2
    own = admission.of(small)
    with admission.room(1), pytest.raises(ServerOverloaded, match="The server"):
        own.room(1).__enter__()

    assert own.running == 0
