"""HAProxy and Envoy with the shipped configurations, in front of three gateways."""

import asyncio
import operator
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tests.scale.conftest import QUEUE, SLOTS, Replicas
from tests.scale.routers import Router

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SERVED_BY = "x-served-by"
STREAM = {
    "model": "mock",
    "prompt": "hi",
    "stream": True,
    "stream_options": {"include_usage": True},
}
LONG = {"model": "slow", "prompt": "hi", "max_tokens": 40, "stream": True}  # two seconds
ENDLESS = {**LONG, "max_tokens": 4000}


@pytest.fixture
async def client(router: Router) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_keepalive_connections=0)  # each request chooses a gateway anew
    async with httpx.AsyncClient(base_url=router.url, timeout=60, limits=limits) as made:
        yield made


async def chat(client: httpx.AsyncClient, model: str = "mock", **headers: str) -> httpx.Response:
    """An answer of a few tokens."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    return await client.post(CHAT, json=body, headers=headers)


async def gateways_of(client: httpx.AsyncClient, header: str, values: list[str]) -> list[str]:
    """The gateway that answers each value of a header. All answers are 200."""
    answers = [await chat(client, **{header: value}) for value in values]
    assert [answer.status_code for answer in answers] == [200] * len(values)
    return [answer.headers[SERVED_BY] for answer in answers]


@pytest.mark.parametrize("header", ["x-session-id", "session_id", "thread-id", "x-api-key"])
async def test_conversation_stays_on_one_gateway(client, replicas, header):
    """By the session that the client names, else by its key. All gateways get some.

    A few may move, because a gateway with more than its share of the load passes them on.
    """
    values = [f"Bearer sk-{number}" for number in range(24)]
    first = await gateways_of(client, header, values)
    second = await gateways_of(client, header, values)

    stayed = sum(map(operator.eq, first, second))
    assert stayed >= 20  # a third of them without affinity
    assert set(first) == set(replicas.running)


async def test_session_decides_before_the_key(client):
    """Users of one key are spread by their sessions."""
    headers = [{"x-session-id": f"s{number}", "authorization": "Bearer k"} for number in range(24)]
    answers = [await chat(client, **each) for each in headers]

    assert len({answer.headers[SERVED_BY] for answer in answers}) == 3


async def test_sessions_header_decides_before_the_thread(client):
    """The first one of the list in docs/scale.md, whatever the order of headers."""
    headers = [{"thread-id": f"t{number}", "x-session-affinity": "s"} for number in range(12)]
    answers = [await chat(client, **each) for each in headers]

    assert len({answer.headers[SERVED_BY] for answer in answers}) == 1


async def test_prompt_cache_key_is_a_session(client, router):
    """HAProxy reads it from the body, before the key of the API."""
    if router.name != "haproxy":
        pytest.skip("Envoy's configuration does not read bodies")
    body = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    key = {"authorization": "Bearer k"}
    answers = [
        await client.post(CHAT, json={**body, "prompt_cache_key": f"c{number % 8}"}, headers=key)
        for number in range(16)
    ]
    gateways = [answer.headers[SERVED_BY] for answer in answers]

    assert sum(map(operator.eq, gateways[:8], gateways[8:])) >= 6
    assert len(set(gateways)) > 1


async def test_requests_without_either_are_spread(client):
    answers = [await chat(client) for _ in range(24)]

    assert len({answer.headers[SERVED_BY] for answer in answers}) > 1


def masked(events: bytes) -> bytes:
    """Events without what differs between two requests."""
    return re.sub(rb'("id":"|"created":)[\w-]+', rb"\1", events)


async def test_stream_arrives_byte_for_byte(client, replicas):
    """The same bytes as from the gateway itself."""
    through = await client.post(COMPLETIONS, json=STREAM)
    url = replicas.running[through.headers[SERVED_BY]].url
    async with httpx.AsyncClient(base_url=url, timeout=60) as direct:
        expected = await direct.post(COMPLETIONS, json=STREAM)

    assert masked(through.content) == masked(expected.content)
    assert through.content.endswith(b"data: [DONE]\n\n")
    assert through.headers["content-type"] == expected.headers["content-type"]


async def test_events_of_a_stream_arrive_one_by_one(client):
    """The router does not collect a response. A piece has a few of its 4,000 events: those of
    seconds if the client waits for the processor.
    """
    async with client.stream("POST", COMPLETIONS, json=ENDLESS) as response:
        pieces = response.aiter_raw()
        received = [await anext(pieces) for _ in range(11)]

    assert b"".join(received).count(b"data: ") < 200


async def until_reported(client: httpx.AsyncClient, sample: str) -> None:
    """Wait until the metrics of a gateway contain this line."""
    async with asyncio.timeout(300):
        while True:
            if sample in (await client.get("/metrics")).text:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def filled(url: str) -> AsyncIterator[None]:
    """A gateway with running requests in all of its slots, and a full queue."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, AsyncExitStack() as streams:
        for _ in range(SLOTS):
            stream = client.stream("POST", COMPLETIONS, json=ENDLESS)
            await streams.enter_async_context(stream)
        queued = [asyncio.create_task(client.post(COMPLETIONS, json=ENDLESS)) for _ in range(QUEUE)]
        await until_reported(client, f"openai_frontend_load_waiting {QUEUE}")
        yield
        for task in queued:
            task.cancel()
        await asyncio.gather(*queued, return_exceptions=True)


async def test_request_moves_on_from_a_full_gateway(client, replicas):
    """The gateway of the session answers 503 `queue_full`; the client gets another's answer."""
    [usual] = await gateways_of(client, "x-session-id", ["moving"])
    async with filled(replicas.running[usual].url):
        answers = [await chat(client, "slow", **{"x-session-id": "moving"}) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [200] * 5
    assert usual not in {answer.headers[SERVED_BY] for answer in answers}


async def statuses_of_sessions(client: httpx.AsyncClient) -> list[int]:
    """Of requests of several sessions at the same time; one gateway has room for all."""
    sessions = ({"x-session-id": f"s{number}"} for number in range(SLOTS))
    answers = await asyncio.gather(*(chat(client, **each) for each in sessions))
    return [answer.status_code for answer in answers]


async def test_stopping_gateway_finishes_its_streams(client, router, replicas):
    """New requests go elsewhere at once, and none is lost."""
    async with client.stream("POST", COMPLETIONS, json=LONG) as response:
        pieces = response.aiter_raw()
        received = [await anext(pieces)]
        stopping = response.headers[SERVED_BY]
        gateway = replicas.running[stopping]
        gateway.send_signal(signal.SIGTERM)
        statuses = await statuses_of_sessions(client)
        received += [piece async for piece in pieces]

    assert await asyncio.to_thread(gateway.wait) == 0
    await started_again(stopping, client, router, replicas)
    assert b"".join(received).endswith(b"data: [DONE]\n\n")
    assert statuses == [200] * SLOTS


async def test_killed_gateway_costs_only_the_requests_that_it_had(client, router, replicas):
    """A request that begins after the kill is answered by another gateway; a stream that was cut
    does not look complete.
    """
    async with client.stream("POST", COMPLETIONS, json=ENDLESS) as response:
        pieces = response.aiter_raw()
        received = [await anext(pieces)]
        killed = response.headers[SERVED_BY]
        gateway = replicas.running[killed]
        gateway.send_signal(signal.SIGKILL)
        await asyncio.to_thread(gateway.wait)
        statuses = await statuses_of_sessions(client)
        with pytest.raises(httpx.RemoteProtocolError):
            received += [piece async for piece in pieces]

    await started_again(killed, client, router, replicas)
    assert b"[DONE]" not in b"".join(received)
    assert statuses == [200] * SLOTS


async def test_request_without_an_answer_moves_on_from_a_killed_gateway(client, router, replicas):
    """Its gateway had begun with it, but had not sent a byte."""
    [usual] = await gateways_of(client, "x-session-id", ["waiting"])
    gateway, gate = replicas.running[usual], replicas.gate(usual)
    gate.close()
    answer = asyncio.create_task(chat(client, "waiting", **{"x-session-id": "waiting"}))
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as direct:
        await until_reported(direct, "openai_frontend_load_waiting 1")
    gateway.send_signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait)
    moved = await answer
    gate.open()

    await started_again(usual, client, router, replicas)
    assert moved.status_code == 200
    assert moved.headers[SERVED_BY] != usual


async def started_again(
    name: str, client: httpx.AsyncClient, router: Router, replicas: Replicas
) -> None:
    """Start a gateway on its port and wait until the router sends requests to it."""
    again = replicas.start(name, replicas.running[name].port)
    await asyncio.to_thread(again.wait_until_ready)
    async with asyncio.timeout(300):
        for number in range(10**6):
            answer = await chat(client, **{"x-session-id": f"again{number}"})
            if answer.headers.get(SERVED_BY) == name:
                return
