"""Models in the gateway's process that sleep, and wake with a request."""

import asyncio
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from openai_frontend.engines.mock import MockEngine
from openai_frontend.generation import GenerationRequest, SamplingParams
from openai_frontend.triton import engine_sleep, inprocess
from tests.api.models.conftest import EXPLICIT, LiveGateway
from tests.api.models.test_on_demand import ON_DEMAND, loaded, options, text, write
from tests.core.engines.held_engine import HeldEngine
from tests.core.triton.waiting import until


async def status(gateway: LiveGateway, model: str = "a") -> str:
    card = (await gateway.client.get(f"/v1/models/{model}")).json()
    value: str = card["status"]["value"]
    return value


async def puts_to_sleep(gateway: LiveGateway, model: str = "a", **fields: Any) -> None:
    response = await gateway.change(model, "sleep", **fields)
    assert response.status_code == 200, response.text
    assert response.json()["status"] == {"value": "sleeping"}


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def metric(gateway: LiveGateway, name: str, model: str = "a") -> float:
    lines = (await gateway.client.get("/metrics")).text.splitlines()
    start = f'openai_frontend_{name}{{model="{model}"}} '
    [value] = [line.removeprefix(start) for line in lines if line.startswith(start)]
    return float(value)


class HeldWakes:
    """Mock engines wake once the test allows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end, self.count = asyncio.Event(), asyncio.Event(), 0
        wake = MockEngine.wake

        async def held(engine: MockEngine) -> None:
            self.count += 1
            self.begun.set()
            await self.may_end.wait()
            await wake(engine)

        monkeypatch.setattr(MockEngine, "wake", held)


async def test_request_wakes_a_sleeping_model(repository, live_gateway):
    """It stays loaded, ready and listed; metrics count."""
    write(repository, "a", sleep_frees_bytes=1000)
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)
        asleep = [await metric(gateway, name) for name in ("model_sleeping", "model_freed_bytes")]
        health = await gateway.client.get("/health/ready")
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        answer = await text(gateway, "a")
        awake = [await metric(gateway, name) for name in ("model_sleeping", "model_freed_bytes")]
        wakes = await metric(gateway, "model_wake_seconds_count")

        assert (asleep, awake, wakes) == ([1, 1000], [0, 0], 1)
        assert [each["status"] for each in listed] == [{"value": "sleeping"}]
        assert (health.status_code, answer, await status(gateway)) == (200, "a a ", "loaded")


async def test_idle_model_sleeps(repository, live_gateway):
    """By the heartbeat, at the level of its options."""
    write(repository, "a")
    options(repository, "a", "idle_sleep_s: 0.1\nsleep_level: 2")
    async with live_gateway() as gateway:
        await until(lambda: engine_sleep.is_sleeping("a"))
        assert await text(gateway, "a") == "a a "


async def test_idle_models_are_left_alone_while_the_server_stops(repository, live_gateway):
    """Their engines are gone before the heartbeat ends."""
    write(repository, "a", "b")
    options(repository, "a", "idle_sleep_s: 1000")
    options(repository, "b", "idle_unload_s: 1000")
    async with live_gateway() as gateway:
        for name in "ab":
            gateway.registry.use(name).last_used -= 1001
        gateway.state.drain_state.drain()
        demand = gateway.state.on_demand
        demand.check_idle()

        assert (demand._changing, demand._evictions) == ({}, {})


async def test_vllm_routes(repository, live_gateway):
    """`model` may be left out while one model can sleep."""
    write(repository, "a")
    write(repository, "b", sleep_obstacle="it needs CUDA")
    async with live_gateway(**EXPLICIT) as gateway:
        seen = [(await gateway.client.get("/is_sleeping")).json()]
        for path in ("/sleep", "/wake_up", "/sleep?level=2&model=a", "/wake_up?model=a"):
            response = await gateway.client.post(path)
            assert (response.status_code, response.text) == (200, "")
            seen.append((await gateway.client.get("/is_sleeping?model=a")).json())

    assert seen == [{"is_sleeping": each} for each in (False, True, False, True, False)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sleep?level=3", "Invalid 'level': expected 1 or 2."),
        ("/sleep?level=", "Invalid 'level': expected 1 or 2."),
        ("/sleep?mode=keep", "Unsupported parameter: 'mode' in the URL's query."),
        ("/wake_up?tags=weights", "Unsupported parameter: 'tags' in the URL's query."),
        ("/v1/models/a/sleep?level=2", "Unsupported parameter: 'level' in the URL's query."),
        ("/v1/models/a/wake?x=1", "Unsupported parameter: 'x' in the URL's query."),
        ("/sleep", "Missing 'model': several models can sleep; name one."),
    ],
)
async def test_invalid_queries(repository, live_gateway, path, message):
    write(repository, "a", "b")
    async with live_gateway(**EXPLICIT) as gateway:
        refused = await gateway.client.post(path)

    assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize("level", [0, 3, "deep"])
async def test_invalid_levels(repository, live_gateway, level):
    write(repository, "a")
    async with live_gateway(**EXPLICIT) as gateway:
        refused = await gateway.change("a", "sleep", json={"level": level})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")


@pytest.mark.parametrize("what", ["sleep", "wake"])
async def test_models_that_cannot_sleep(repository, live_gateway, what):
    """The reason is the engine's; an unknown model is a 404, and a switched-off setting a 403."""
    write(repository, "a", sleep_obstacle="it needs CUDA")
    async with live_gateway(**EXPLICIT) as gateway:
        cannot = await gateway.change("a", what)
        unknown = await gateway.change("nobody", what)
    async with live_gateway() as gateway:
        off = await gateway.change("a", what)

    assert error(cannot) == (409, "cannot_sleep")
    assert "it needs CUDA" in cannot.json()["error"]["message"]
    assert error(unknown) == (404, "model_not_found")
    assert error(off) == (403, "model_management_off")


@pytest.mark.parametrize("option", ["idle_sleep_s", "sleep_level"])
async def test_option_of_a_model_that_cannot_sleep(repository, live_gateway, option):
    """The model fails with the names of the option and the reason; others are unaffected."""
    write(repository, "a", sleep_obstacle="it needs CUDA")
    write(repository, "b")
    options(repository, "a", f"{option}: 1")
    async with live_gateway() as gateway:
        card = (await gateway.client.get("/v1/models/a")).json()

        assert await text(gateway, "b") == "b b "
    assert card["error"] == f"its option {option} has no effect: it needs CUDA"


async def test_running_stream_forbids_sleep(repository, live_gateway):
    write(repository, "a", hang_after_tokens=1, answer_tokens=25)
    async with live_gateway(**EXPLICIT) as gateway:
        busy = HeldEngine("a")
        running = asyncio.create_task(text(gateway, "a", max_tokens=25))
        await busy.hangs()
        refused = await gateway.change("a", "sleep")
        busy.release()

        assert error(refused) == (409, "model_in_use")
        assert await running == "a " * 25


async def test_tokenization_does_not_wake(repository, live_gateway):
    """Neither do prompts that are only rendered."""
    write(repository, "a")
    chat = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)
        answers = [
            await gateway.client.post("/tokenize", json={"model": "a", "prompt": "hi"}),
            await gateway.client.post("/v1/chat/completions/render", json=chat),
            await gateway.client.get("/metrics"),
            await gateway.client.get("/health"),
        ]

        assert [each.status_code for each in answers] == [200] * 4
        assert await status(gateway) == "sleeping"


async def test_requests_share_a_wake_and_wait_by_priority(repository, live_gateway, monkeypatch):
    """The first one begins it, also if it leaves."""
    write(repository, "a", max_running=1)
    options(repository, "a", "max_concurrent_requests: 1")
    wakes, ended = HeldWakes(monkeypatch), []
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)

        async def ask(priority: int) -> None:
            await text(gateway, "a", priority=priority)
            ended.append(priority)

        leaving = asyncio.create_task(text(gateway, "a"))
        await wakes.begun.wait()
        waking = await status(gateway)
        asked = [asyncio.create_task(ask(priority)) for priority in (5, 3, 4, 1)]
        await until(lambda: gateway.state.limiter.queued == 5)
        leaving.cancel()
        await until(lambda: gateway.state.limiter.queued == 4)
        wakes.may_end.set()
        await asyncio.gather(*asked)

    assert (waking, wakes.count, ended) == ("loading", 1, [1, 3, 4, 5])


async def test_queue_timeout_during_a_wake(repository, live_gateway, monkeypatch):
    """The client learns how long the last wake took."""
    write(repository, "a")
    options(repository, "a", "queue_timeout_s: 0.05")
    wakes = HeldWakes(monkeypatch)
    async with live_gateway(**EXPLICIT) as gateway:
        gateway.state.sleep._wake_s["a"] = 7.0
        await puts_to_sleep(gateway)
        late = await gateway.complete("a")
        wakes.may_end.set()
        await until(lambda: not engine_sleep.is_sleeping("a"))

    assert (error(late), late.headers["retry-after"]) == ((503, "queue_timeout"), "7")
    assert "sleeps and is being woken" in late.json()["error"]["message"]


async def test_model_without_a_queue(repository, live_gateway):
    """Requests that the awake model would run wait for it all the same."""
    write(repository, "a", wake_s=0.05)
    options(repository, "a", "max_queue_size: 0\nmax_concurrent_requests: 2")
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)
        answers = await asyncio.gather(*(gateway.complete("a") for _ in range(3)))

    assert sorted(each.status_code for each in answers) == [200, 200, 503]


async def test_request_while_the_model_falls_asleep(repository, live_gateway):
    """It waits for the end of that, and for the wake."""
    write(repository, "a", sleep_s=0.1)
    async with live_gateway(**EXPLICIT) as gateway:
        falling = asyncio.create_task(gateway.change("a", "sleep"))
        await until(lambda: engine_sleep.is_sleeping("a"))
        answers = await asyncio.gather(*(text(gateway, "a") for _ in range(5)))

        assert answers == ["a a "] * 5
        assert (await falling).status_code == 200


async def test_request_while_an_idle_model_falls_asleep(repository, live_gateway):
    """The heartbeat began the sleep, which the request outlasts and then ends."""
    write(repository, "a", sleep_s=0.5)
    options(repository, "a", "idle_sleep_s: 0.1")
    async with live_gateway(queue_timeout_s=20.0) as gateway:
        await until(lambda: engine_sleep.is_sleeping("a"))
        answers = await asyncio.gather(*(text(gateway, "a") for _ in range(5)))

    assert answers == ["a a "] * 5


@pytest.mark.parametrize("change", ["sleep", "wake"])
async def test_engine_that_dies_during_a_change_is_restarted(
    repository, live_gateway, monkeypatch, change
):
    """The change of a dead engine would never end."""
    write(repository, "a")
    dead: list[MockEngine] = []

    async def never(engine: MockEngine, *_: object) -> None:
        dead.append(engine)
        await asyncio.Event().wait()

    def failure(engine: MockEngine) -> str | None:
        return "its process has died" if engine in dead else None

    async with live_gateway(**EXPLICIT, engine_max_restarts=3) as gateway:
        if change == "wake":
            await puts_to_sleep(gateway)
        monkeypatch.setattr(MockEngine, change, never)
        monkeypatch.setattr(MockEngine, "failure", failure)
        asked = asyncio.create_task(gateway.change("a", change))
        await until(lambda: bool(dead))
        async with asyncio.timeout(30):
            await asked
            await until(lambda: inprocess.handle("a")._engine not in dead)
            await until(gateway.registry.is_ready)
            assert await text(gateway, "a") == "a a "


async def test_failed_wake_restarts_the_engine(repository, live_gateway, monkeypatch):
    """Requests wait for the restart; none is lost."""
    write(repository, "a", failed_wakes=1)
    wakes = HeldWakes(monkeypatch)
    async with live_gateway(**EXPLICIT, engine_max_restarts=3) as gateway:
        before = inprocess.handle("a")._engine
        await puts_to_sleep(gateway)
        asked = [asyncio.create_task(text(gateway, "a")) for _ in range(5)]
        await until(lambda: gateway.state.limiter.queued == 5)
        wakes.may_end.set()

        assert await asyncio.gather(*asked) == ["a a "] * 5
        assert inprocess.handle("a")._engine is not before
        assert await metric(gateway, "engine_restarts_total") == 1


async def test_failed_wake_without_restarts(repository, live_gateway):
    """Requests get the reason."""
    write(repository, "a", failed_wakes=1)
    async with live_gateway(**EXPLICIT, engine_max_restarts=0) as gateway:
        await puts_to_sleep(gateway)
        refused = await gateway.complete("a")
        again = await gateway.complete("a")

    assert (refused.status_code, again.status_code) == (503, 503)
    assert "its engine did not wake: EngineError: out of memory" in refused.text


async def test_unload_and_reload_of_a_sleeping_model(repository, live_gateway):
    """The new instance is awake."""
    write(repository, "a")
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)
        write(repository, "a", sleep_frees_bytes=1)
        await gateway.change("a", "load")
        reloaded = await status(gateway)
        await puts_to_sleep(gateway)
        await gateway.change("a", "unload")
        gone = await metric(gateway, "model_sleeping")
        await gateway.change("a", "load")

        assert (reloaded, gone, await text(gateway, "a")) == ("loaded", 0, "a a ")


async def test_least_recently_used_model_sleeps_before_one_is_unloaded(repository, live_gateway):
    """Under a budget of memory. A wake makes room in the same way."""
    write(repository, "a", "b", sleep_frees_bytes=90)
    for name in "ab":
        options(repository, name, "memory_bytes: 100\nsleep_level: 1")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=110) as gateway:
        seen = []
        for name in "aba":
            assert await text(gateway, name) == f"{name} {name} "
            seen.append((await status(gateway, "a"), await status(gateway, "b")))

        assert loaded(gateway) == {"a", "b"}
    assert seen == [("loaded", "unloaded"), ("sleeping", "loaded"), ("loaded", "sleeping")]


async def test_sleep_that_frees_too_little(repository, live_gateway):
    """The model is unloaded then."""
    write(repository, "a", "b", sleep_frees_bytes=10)
    for name in "ab":
        options(repository, name, "memory_bytes: 100\nsleep_level: 1")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=110) as gateway:
        for name in "abab":
            assert await text(gateway, name) == f"{name} {name} "
        assert loaded(gateway) == {"b"}


async def test_alternating_wakes(repository, live_gateway):
    """Two models with room for one awake, requested concurrently: no request is lost."""
    write(repository, "a", "b", sleep_frees_bytes=90)
    for name in "ab":
        options(repository, name, "memory_bytes: 100\nsleep_level: 1")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=110) as gateway:
        names = ["a", "b"] * 20
        answers = await asyncio.gather(*(text(gateway, name) for name in names))

    assert answers == [f"{name} {name} " for name in names]


async def test_request_that_passed_no_queue_wakes_the_model(repository, live_gateway):
    """Triton's own callers, such as ensembles, do not wait in the gateway's queues."""
    write(repository, "a")
    request = GenerationRequest(
        request_id="1", prompt="hi", sampling_params=SamplingParams(max_tokens=2)
    )
    async with live_gateway(**EXPLICIT) as gateway:
        await puts_to_sleep(gateway)
        async with aclosing(gateway.registry.get("a").generate(request)) as bursts:
            deltas = [delta async for burst in bursts for delta in burst]

        assert "".join(each.text for each in deltas) == "a a "
        assert not engine_sleep.is_sleeping("a")
