"""Models that are unloaded after a time without requests."""

import asyncio
import time

import pytest

from tests.api.models.conftest import EXPLICIT, HeldLoads, LiveGateway
from tests.api.models.test_on_demand import ON_DEMAND, loaded, options, text, write
from tests.core.engines.held_engine import HeldEngine
from tests.core.triton.waiting import until

# Long enough that no test waits for it: tests that need the time to be over move the clock of uses
IDLE = "idle_unload_s: 1000"


def becomes_idle(gateway: LiveGateway, *models: str) -> None:
    """The time of the option is over for these models."""
    for name in models:
        gateway.registry.use(name).last_used = time.monotonic() - 1001
    demand = gateway.state.on_demand
    assert demand is not None
    demand.check_idle()


async def test_idle_model_is_unloaded_and_a_request_loads_it_again(repository, live_gateway):
    """By the heartbeat. It is loaded at the start, and models without the option stay loaded."""
    write(repository, "a", "b")
    options(repository, "a", "idle_unload_s: 0.1")
    async with live_gateway(model_control_mode="none") as gateway:
        at_start = await gateway.listed()
        await until(lambda: loaded(gateway) == {"b"})
        card = (await gateway.client.get("/v1/models/a")).json()
        health = await gateway.client.get("/health/ready")
        answer = await text(gateway, "a")

    assert (at_start, answer) == (["a", "b"], "a a ")
    assert (card["status"], card["ready"], health.status_code) == (
        {"value": "unloaded"},
        False,
        200,
    )


async def test_default_of_all_models(repository, live_gateway):
    """The options of `*` apply to models without options of their own."""
    write(repository, "a", "b")
    options(repository, "b", IDLE)
    every = {"*": {"idle_unload_s": 0.1}}
    async with live_gateway(model_control_mode="none", model_option=every) as gateway:
        await until(lambda: loaded(gateway) == {"b"})
        answer = await text(gateway, "a")  # it loads again

    assert answer == "a a "


async def test_model_that_another_one_calls_stays(repository, live_gateway):
    """The calls do not pass the gateway. It may go once its caller has."""
    write(repository, "part", "caller", "other")
    options(repository, "part", f"{IDLE}\nensemble: caller")
    options(repository, "other", "idle_unload_s: 0.1")
    async with live_gateway(**EXPLICIT | {"load_model": ["part", "caller", "other"]}) as gateway:
        gateway.registry.use("part").last_used -= 1001
        await until(lambda: "other" not in loaded(gateway))
        before = loaded(gateway)
        await gateway.change("caller", "unload")
        await until(lambda: loaded(gateway) == set())

    assert before == {"part", "caller"}


async def test_only_the_time_since_the_last_request_counts(repository, live_gateway):
    """A request, or a load by an operator, begins it anew."""
    write(repository, "a", "b")
    for name in "ab":
        options(repository, name, IDLE)
    async with live_gateway(**EXPLICIT) as gateway:
        for name in "ab":
            gateway.registry.use(name).last_used -= 1001
        await text(gateway, "a")
        await gateway.change("b", "load")
        demand = gateway.state.on_demand
        demand.check_idle()

        assert not demand._evictions


async def test_request_that_runs_or_waits_keeps_its_model(repository, live_gateway):
    """However long ago the last one ended."""
    write(repository, "a", hang_after_tokens=1, answer_tokens=25)
    options(repository, "a", f"{IDLE}\nmax_concurrent_requests: 1")
    async with live_gateway() as gateway:
        busy = HeldEngine("a")
        running = asyncio.create_task(text(gateway, "a", max_tokens=25))
        await busy.hangs()
        waiting = asyncio.create_task(text(gateway, "a", max_tokens=1))
        await until(lambda: gateway.state.limiter.queued == 1)
        becomes_idle(gateway, "a")

        assert not gateway.state.on_demand._evictions
        busy.release()
        assert [await running, await waiting] == ["a " * 25, "a "]


async def test_embeddings_of_many_inputs_keep_their_model(repository, live_gateway):
    """A list of inputs uses its model until the last of them is done."""
    write(repository, "a", "b", dimensions=4, tasks=["embed"])
    async with live_gateway(**ON_DEMAND, max_loaded_models=1) as gateway:

        async def embed(model: str) -> int:
            body = {"model": model, "input": [f"{each}" for each in range(300)]}
            response = await gateway.client.post("/v1/embeddings", json=body)
            assert response.status_code == 200, response.text
            return len(response.json()["data"])

        counts = await asyncio.gather(*(embed(name) for name in "abab" * 4))

    assert counts == [300] * 16


async def test_requests_during_the_unload_of_an_idle_model(repository, live_gateway, monkeypatch):
    """They wait for its end, and for the load that follows."""
    write(repository, "a")
    options(repository, "a", IDLE)
    async with live_gateway() as gateway:
        unload, may_end = gateway.registry._server.unload_model, asyncio.Event()

        async def held(name: str) -> None:
            await may_end.wait()
            await unload(name)

        monkeypatch.setattr(gateway.registry._server, "unload_model", held)
        becomes_idle(gateway, "a")
        await until(lambda: gateway.registry.locks.is_unloading("a"))
        asked = [asyncio.create_task(text(gateway, "a")) for _ in range(5)]
        await until(lambda: len(gateway.state.on_demand._queue("a")) == 5)
        may_end.set()

        assert await asyncio.gather(*asked) == ["a a "] * 5


async def test_request_that_comes_before_the_unload_begins(repository, live_gateway):
    """It keeps the model loaded."""
    write(repository, "a")
    options(repository, "a", IDLE)
    async with live_gateway() as gateway:
        becomes_idle(gateway, "a")
        use = gateway.registry.use("a")
        use.pin()  # as a request that looks the model up; the unload's task has not run yet
        await until(lambda: not gateway.state.on_demand._evictions)

        assert loaded(gateway) == {"a"}
        use.unpin()


async def test_client_that_leaves_while_it_waits_for_the_load(
    repository, live_gateway, held_loads: HeldLoads
):
    """The queue forgets it, and other requests get the model."""
    write(repository, "a")
    async with live_gateway(**ON_DEMAND) as gateway:
        leaving, staying = (asyncio.create_task(text(gateway, "a")) for _ in range(2))
        queue = gateway.state.on_demand._queue("a")
        await until(lambda: len(queue) == 2)
        leaving.cancel()
        await until(lambda: len(queue) == 1)
        held_loads.may_end.set()

        assert await staying == "a a "


async def test_requests_wait_for_a_load_by_priority(
    repository, live_gateway, held_loads: HeldLoads
):
    """They enter the model in the order of their priorities, not of their arrival."""
    write(repository, "a", max_running=1)
    options(repository, "a", "max_concurrent_requests: 1")
    ended: list[int] = []
    async with live_gateway(**ON_DEMAND) as gateway:

        async def ask(priority: int) -> None:
            await text(gateway, "a", priority=priority)
            ended.append(priority)

        queue, asked = gateway.state.on_demand._queue("a"), []
        for waiting, priority in enumerate((5, 3, 4, 1), 1):
            asked.append(asyncio.create_task(ask(priority)))
            await until(lambda: len(queue) == waiting)  # noqa: B023
        held_loads.may_end.set()
        await asyncio.gather(*asked)

    assert ended == [1, 3, 4, 5]


async def test_queue_timeout_during_a_load(repository, live_gateway, held_loads: HeldLoads):
    """The client learns how long the last load took; this one continues."""
    write(repository, "a")
    options(repository, "a", "queue_timeout_s: 0.05")
    async with live_gateway(**ON_DEMAND) as gateway:
        gateway.state.on_demand._load_s["a"] = 7.0
        late = await gateway.complete("a")
        held_loads.may_end.set()
        await until(lambda: loaded(gateway) == {"a"})

    assert (late.status_code, late.headers["retry-after"]) == (503, "7")
    error = late.json()["error"]
    assert error["code"] == "queue_timeout"
    assert "The model 'a' is loading" in error["message"]


async def test_full_queue_during_a_load(repository, live_gateway, held_loads: HeldLoads):
    """As many requests wait as the model would run and queue."""
    write(repository, "a")
    options(repository, "a", "max_concurrent_requests: 1\nmax_queue_size: 1")
    async with live_gateway(**ON_DEMAND) as gateway:
        waiting = [asyncio.create_task(text(gateway, "a")) for _ in range(2)]
        await until(lambda: len(gateway.state.on_demand._queue("a")) == 2)
        refused = await gateway.complete("a")
        held_loads.may_end.set()

        assert await asyncio.gather(*waiting) == ["a a "] * 2
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")


async def test_stop_while_requests_wait_for_a_load(repository, live_gateway, held_loads: HeldLoads):
    """They are rejected at once, as those in other queues."""
    write(repository, "a")
    async with live_gateway(**ON_DEMAND) as gateway:
        waiting = asyncio.create_task(gateway.complete("a"))
        await until(lambda: len(gateway.state.on_demand._queue("a")) == 1)
        gateway.state.drain_state.drain()
        rejected = await waiting
        held_loads.may_end.set()

    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "server_draining")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/completions/render", {"prompt": "hi"}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_requests_that_run_no_model_load_none(repository, live_gateway, path, body):
    """They get the 503 of a model that is not loaded."""
    write(repository, "a")
    async with live_gateway(**ON_DEMAND) as gateway:
        refused = await gateway.client.post(path, json={"model": "a", **body})

        assert (refused.status_code, loaded(gateway)) == (503, set())
        assert "it is not loaded" in refused.text


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/metrics", "/v1/models"])
async def test_observers_load_no_model(repository, live_gateway, path):
    """Neither do they count as use."""
    write(repository, "a", "b")
    options(repository, "a", IDLE)
    options(repository, "b", "load_on_demand: true")
    async with live_gateway() as gateway:
        used = gateway.registry.use("a").last_used
        response = await gateway.client.get(path)

        assert response.status_code == 200
        assert (loaded(gateway), gateway.registry.use("a").last_used) == ({"a"}, used)


@pytest.mark.parametrize("value", ["0", "-1", "soon"])
async def test_invalid_time(repository, live_gateway, value):
    """The model fails with the name of its option."""
    write(repository, "a")
    options(repository, "a", f"idle_unload_s: {value}")
    async with live_gateway() as gateway:
        card = (await gateway.client.get("/v1/models/a")).json()

    assert card["status"] == {"value": "failed"}
    assert "idle_unload_s" in card["error"]
