"""Settings that change while the application runs: the next request has the new ones."""

import asyncio

import pytest

from openai_frontend.app import change
from openai_frontend.settings import Settings

MESSAGES = [{"role": "user", "content": "hi"}] * 2
LONG = {"role": "user", "content": "x" * 2000}  # bytes

# Settings that a request shows -> what it says, and its status before and with the new value
CHANGES = [
    ({"max_body_bytes": 1000}, {"messages": [LONG]}, 200, 413),
    ({"max_messages": 1}, {"messages": MESSAGES}, 200, 400),
    ({"max_n": 1}, {"n": 2}, 200, 400),
    ({"max_answer_tokens": 5}, {"max_tokens": 6}, 200, 400),
    ({"unknown_fields": "reject"}, {"nonsense": 1}, 200, 400),
]


@pytest.mark.parametrize(("new", "fields", "before", "after"), CHANGES)
async def test_a_limit(world, new, fields, before, after):
    """Lower, it refuses what was served before; as it was, it serves that again."""
    world.model()

    first = await world.chat(**fields)
    change(world.app, Settings(**new))
    second = await world.chat(**fields)
    change(world.app, Settings())
    third = await world.chat(**fields)

    statuses = [answer.status_code for answer in (first, second, third)]
    assert statuses == [before, after, before]


async def test_the_origins_of_web_pages(world):
    """A page that may use the API is told so from now on."""
    page = {"origin": "https://chat.example.com"}

    before = await world.client.get("/health/live", headers=page)
    change(world.app, Settings(cors_origin=[page["origin"]]))
    after = await world.client.get("/health/live", headers=page)

    header = "access-control-allow-origin"
    assert (before.headers.get(header), after.headers.get(header)) == (None, page["origin"])


async def test_what_runs_counts_on(world):
    """A smaller number of places counts the requests of before."""
    endless = world.model(endless=True)
    running = asyncio.create_task(world.chat())
    await endless.begun.wait()
    world.model()

    change(world.app, Settings(max_streams=1, max_queue=0))
    refused = await world.chat()
    running.cancel()
    await asyncio.wait([running])
    taken = await world.chat()

    assert (refused.status_code, taken.status_code) == (503, 200)


async def test_what_lasts(world):
    """The models are those of the start, and the counters count on."""
    world.model()
    await world.chat()

    change(world.app, Settings(max_n=1))

    metrics = await world.client.get("/metrics")
    assert 'route="/v1/chat/completions"' in metrics.text
    assert (await world.chat()).status_code == 200
    assert not world.server.stopped
