"""Requests that wait for admission over real sockets: order, rejection, disconnect."""

import asyncio

import httpx

from openai_frontend.admission.queue import ConcurrencyLimits
from openai_frontend.serving.admission.concurrency_limit import ModelSlots
from tests import mock_models
from tests.api.models.conftest import LiveGateway
from tests.core.triton.waiting import until
from tests.fast.auth import key_files

BODY = {"model": "m", "prompt": "hi"}
ONE = {"max_concurrent_requests": 1}
TENSORS = {"text_input": "hi", "max_tokens": 5}


def write(repository) -> None:
    """A model that is fast, so that only the queue makes anybody wait."""
    mock_models.write_with_tokenizer(repository, "m", tokens=["a"])


def slots(gateway: LiveGateway) -> ModelSlots:
    return gateway.state.limiter.slots("m", ConcurrencyLimits())


async def wait(gateway: LiveGateway, waiting: int, running: int = 1) -> None:
    own = slots(gateway)
    await until(lambda: (own.running, len(own.queue)) == (running, waiting))


def check_refusal(response: httpx.Response, code: str) -> None:
    """With a time to come again in both of its forms."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, code), error
    milliseconds = int(response.headers["retry-after-ms"])
    assert 0 < milliseconds <= 1000 * int(response.headers["retry-after"]) <= 60_000


async def test_waiting_requests_are_served(repository, live_gateway):
    """Streams, complete responses, embeddings and tensors share one queue; requests beyond it are
    rejected.
    """
    write(repository)
    async with live_gateway(**ONE, max_queue_size=4) as gateway:
        await slots(gateway).acquire(1)
        waiting = [asyncio.create_task(gateway.complete("m", max_tokens=1, stream=True))]
        await wait(gateway, 1)
        waiting.append(asyncio.create_task(gateway.chat("m", max_tokens=1)))
        await wait(gateway, 2)
        vectors = {"model": "m", "input": ["a", "b"]}
        waiting.append(asyncio.create_task(gateway.client.post("/v1/embeddings", json=vectors)))
        await wait(gateway, 3)
        path = "/v2/models/m/generate_stream"
        tensors = {"text_input": "hi", "stream": True, "sampling_parameters": '{"max_tokens": 1}'}
        waiting.append(asyncio.create_task(gateway.client.post(path, json=tensors)))
        await wait(gateway, 4)
        refused = await gateway.complete("m")
        of_kserve = await gateway.client.post(path, json=tensors)
        slots(gateway).release(1)
        answers = await asyncio.gather(*waiting)

    assert [answer.status_code for answer in answers] == [200] * 4
    check_refusal(refused, "queue_full")
    assert (of_kserve.status_code, list(of_kserve.json())) == (503, ["error"])
    assert of_kserve.headers["retry-after"]


async def test_queue_timeout(repository, live_gateway):
    """A wait beyond the timeout ends with 503; a tensor request may bring a timeout of its own."""
    write(repository)
    (repository / "m" / "openai_frontend.yaml").write_text("queue_timeout_s: 0.2")
    async with live_gateway(**ONE, queue_timeout_s=60) as gateway:
        await slots(gateway).acquire(1)
        late = asyncio.create_task(gateway.complete("m", stream=True))
        shorter = {**TENSORS, "parameters": {"timeout": 20_000}}
        own = await gateway.client.post("/v2/models/m/generate", json=shorter)
        check_refusal(await late, "queue_timeout")
        assert own.status_code == 503
        assert "waited 0.02 s" in own.json()["error"]
        slots(gateway).release(1)
        assert (await gateway.complete("m")).status_code == 200


async def test_disconnect_leaves_the_queue(repository, live_gateway):
    """A waiting request whose client disconnects is removed, streaming or not."""
    write(repository)
    async with live_gateway(**ONE, max_queue_size=3) as gateway:
        await slots(gateway).acquire(1)
        path = "/v2/models/m/generate_stream"
        gone = [
            asyncio.create_task(gateway.complete("m", stream=True)),
            asyncio.create_task(gateway.complete("m")),
            asyncio.create_task(gateway.client.post(path, json=TENSORS)),
        ]
        await wait(gateway, 3)
        for task in gone:
            task.cancel()
        await wait(gateway, 0)
        slots(gateway).release(1)
        assert (await gateway.complete("m")).status_code == 200


async def test_drain(repository, live_gateway):
    """Waiting requests are rejected immediately; running ones finish."""
    write(repository)
    async with live_gateway(**ONE) as gateway:
        await slots(gateway).acquire(1)
        waiting = [
            asyncio.create_task(gateway.complete("m", stream=each)) for each in (False, True)
        ]
        await wait(gateway, 2)
        gateway.state.drain_state.drain()
        for each in waiting:
            check_refusal(await each, "server_draining")
        assert slots(gateway).running == 1
        slots(gateway).release(1)


async def test_keys_take_turns(repository, live_gateway, tmp_path):
    """A key with many waiting holds nobody up: another's one request is next but one, and a key of
    a lower number goes before both. Refused, it is told how its limits stand.
    """
    write(repository)
    keys = key_files.write(
        tmp_path / "keys.yaml",
        key_files.key("many", requests_per_minute=1000),
        key_files.key("one"),
        key_files.key("first", priority=-1),
    )
    ended: list[str] = []
    async with live_gateway(**ONE, max_queue_size=7, keys_file=keys) as gateway:

        async def ask(key: str) -> httpx.Response:
            headers = key_files.bearer(key)
            answer: httpx.Response = await gateway.client.post(
                "/v1/completions", json={**BODY, "max_tokens": 5}, headers=headers
            )
            if answer.status_code == 200:
                ended.append(key)
            return answer

        asked = []
        await slots(gateway).acquire(1)
        for waiting in range(1, 8):
            asked.append(asyncio.create_task(ask("many")))
            await wait(gateway, waiting)
        refused = await ask("many")
        asked.append(asyncio.create_task(ask("one")))  # the newest of the others gives way
        await until(lambda: any(task.done() for task in asked))
        asked.append(asyncio.create_task(ask("first")))  # and another one to this
        await until(lambda: sum(task.done() for task in asked) == 2)
        slots(gateway).release(1)
        answers = await asyncio.gather(*asked)

    check_refusal(refused, "queue_full")
    assert refused.headers["x-ratelimit-limit-requests"] == "1000"
    assert refused.headers["x-ratelimit-remaining-requests"]
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [503] * 2
    assert ended == ["first", "many", "one", *["many"] * 4]


async def test_metrics(repository, live_gateway):
    """Waiting requests, waiting times and reasons for rejections are counted."""
    write(repository)
    async with live_gateway(**ONE, max_queue_size=1) as gateway:
        await slots(gateway).acquire(1)
        second = asyncio.create_task(gateway.complete("m", max_tokens=1))
        await wait(gateway, 1)
        check_refusal(await gateway.complete("m"), "queue_full")
        during = (await gateway.client.get("/metrics")).text
        slots(gateway).release(1)
        await second
        after = (await gateway.client.get("/metrics")).text

    def lines(text: str, name: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(f"openai_frontend_{name}")]

    assert [lines(text, "requests_waiting{")[0].split()[-1] for text in (during, after)] == [
        "1.0",
        "0.0",
    ]
    assert lines(after, "queue_wait_seconds_count{")[0].split()[-1] == "1.0"
    assert any('reason="queue_full"' in line for line in lines(after, "requests_rejected_total{"))
