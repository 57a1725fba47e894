"""Models that are loaded on demand."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from openai_frontend.models import on_demand
from tests import mock_models
from tests.api.models.conftest import LiveGateway
from tests.core.engines.held_engine import HeldEngine
from tests.core.triton.waiting import until

ON_DEMAND: dict[str, Any] = {"model_control_mode": "explicit", "load_on_demand": True}


def write(repository, *names: str, **arguments: Any) -> None:
    for name in names:
        settings = {"tokens": [f"{name} "], "answer_tokens": 2, **arguments}
        mock_models.write_with_tokenizer(repository, name, **settings)


def options(repository, name: str, text: str) -> None:
    (repository / name / "openai_frontend.yaml").write_text(text)


async def text(gateway: LiveGateway, model: str, **fields: Any) -> str:
    response = await gateway.complete(model, **fields)
    assert response.status_code == 200, response.text
    answer: str = response.json()["choices"][0]["text"]
    return answer


def loaded(gateway: LiveGateway) -> set[str]:
    """What the core has, whatever the registry believes."""
    return {entry.name for entry in gateway.server.model_index() if entry.state == "READY"}


async def test_request_loads_its_model(repository, live_gateway):
    """No model is loaded at startup, but all are listed; a request loads its model."""
    write(repository, "a", "b")
    async with live_gateway(**ON_DEMAND) as gateway:
        before = loaded(gateway)
        listed = await gateway.listed()
        answer = await text(gateway, "a")

        assert (before, listed, answer) == (set(), ["a", "b"], "a a ")
        assert loaded(gateway) == {"a"}


async def test_startup_models(repository, live_gateway):
    """The models in the setting are loaded before the server is ready; one that cannot be loaded
    does not keep it from getting ready.
    """
    write(repository, "a", "b")
    async with live_gateway(**ON_DEMAND, load_model=["b", "missing"]) as gateway:
        reasons: dict[str, str] = {}
        while (health := await gateway.client.get("/health/ready")).status_code == 503:
            reasons |= health.json()["models"]
            await asyncio.sleep(0.01)
        at_ready = loaded(gateway)
        answer = await text(gateway, "b")

        assert reasons.items() <= dict.fromkeys(["b", "missing"], "it is loading").items()
        assert (at_ready, answer) == ({"b"}, "b b ")
        assert loaded(gateway) == {"b"}  # the other was not requested


async def test_option_of_a_single_model(repository, live_gateway):
    """It is loaded by a request, the others at start. Until then its card has what its options
    tell.
    """
    write(repository, "a", "b")
    options(
        repository,
        "b",
        "load_on_demand: true\ncapabilities: [chat]\naliases: [other]\nmax_output_tokens: 9",
    )
    async with live_gateway(model_control_mode="none") as gateway:
        before = loaded(gateway)
        listed = await gateway.listed()
        card = (await gateway.client.get("/v1/models/other")).json()
        ready = await gateway.client.get("/health/ready")
        answer = await text(gateway, "other")

        assert (before, listed, answer) == ({"a"}, ["a", "b", "other"], "b b ")
        assert [name for name, can in card["capabilities"].items() if can] == ["chat"]
        assert (card["root"], card["ready"], ready.status_code) == ("b", False, 200)
        assert (card["status"], card["max_output_tokens"]) == ({"value": "unloaded"}, 9)
        assert loaded(gateway) == {"a", "b"}


async def test_named_models_are_loaded_at_start_whatever_their_option(repository, live_gateway):
    """`load_model` names them, so their option does not hold them back."""
    write(repository, "a", "b")
    options(repository, "a", "load_on_demand: true")
    options(repository, "b", "load_on_demand: true")
    async with live_gateway(load_model=["b"]) as gateway:
        assert loaded(gateway) == {"b"}
        assert await text(gateway, "a") == "a a "


async def test_models_of_the_start_are_neither_evicted_nor_loaded_again(repository, live_gateway):
    """Only models with the option make room for each other. One without it stays unloaded."""
    write(repository, "a", "b", "c")
    for name in "bc":
        options(repository, name, "load_on_demand: true")
    async with live_gateway(max_loaded_models=1, enable_model_management=True) as gateway:
        answers = [await text(gateway, name) for name in "abcb"]
        after = loaded(gateway)
        await gateway.change("a", "unload")
        refused = await gateway.complete("a")

    assert (answers, after) == (["a a ", "b b ", "c c ", "b b "], {"a", "b"})
    assert refused.status_code == 503


async def test_concurrent_requests_share_a_load(repository, live_gateway):
    """However many requests, and under any name."""
    write(repository, "a", load_s=0.2)
    options(repository, "a", "aliases: [other]")
    async with live_gateway(**ON_DEMAND) as gateway:
        answers = await asyncio.gather(
            *(text(gateway, name) for name in ("a", "other", "a@1") for _ in range(8))
        )
        (version,) = (
            model
            for model in gateway.server.model_statistics()["model_stats"]
            if model["name"] == "a"
        )
        created = {card.created for card in gateway.registry.cards()}

    assert set(answers) == {"a a "}
    assert int(version["inference_stats"]["success"]["count"]) == 24  # one load has counted all
    assert len(created) == 1


@pytest.mark.parametrize("name", ["a", "other"])
async def test_client_that_leaves_during_a_load(repository, live_gateway, held_loads, name):
    """Its request ends at once, and the load continues for others."""
    write(repository, "a")
    options(repository, "a", "aliases: [other]")
    async with live_gateway(**ON_DEMAND) as gateway:
        bodies = gateway.state.body_memory
        leaving = asyncio.create_task(gateway.complete(name, prompt="x" * 100_000))
        await until(held_loads.begun.is_set)
        assert bodies.used_bytes > 100_000
        leaving.cancel()
        await until(lambda: not bodies.used_bytes)

        assert loaded(gateway) == set()
        held_loads.may_end.set()
        assert await text(gateway, "a") == "a a "


async def test_request_timeout_during_a_load(repository, live_gateway, held_loads):
    """It covers the wait for the model."""
    write(repository, "a")
    async with live_gateway(**ON_DEMAND, request_timeout_s=0.2) as gateway:
        late = await gateway.complete("a")
        at_once = loaded(gateway)
        held_loads.may_end.set()

        assert at_once == set()
        assert (late.status_code, late.json()["error"]["code"]) == (504, "request_timeout")
        await until(lambda: loaded(gateway) == {"a"})


async def test_least_recently_used_is_evicted(repository, live_gateway):
    """With room for two models, a third one evicts the least recently used."""
    write(repository, "a", "b", "c")
    async with live_gateway(**ON_DEMAND, max_loaded_models=2) as gateway:
        seen = []
        for name in ("a", "b", "a", "c", "b"):
            assert await text(gateway, name) == f"{name} {name} "
            seen.append(loaded(gateway))

    assert seen == [{"a"}, {"a", "b"}, {"a", "b"}, {"a", "c"}, {"b", "c"}]


async def test_loads_side_by_side(repository, live_gateway, held_loads):
    """Models whose sizes are known; each takes its room from the begin of its load. One that must
    be measured loads alone.
    """
    write(repository, "a", "b", "c", "measured")
    for name in "abc":
        options(repository, name, "memory_bytes: 40")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=100) as gateway:
        demand: Any = gateway.registry.uses.demand
        answers = {name: asyncio.create_task(text(gateway, name)) for name in "ab"}
        locks = gateway.registry.locks
        await until(lambda: locks.is_loading("a") and locks.is_loading("b"))
        others = {"c", "measured"}
        waiting = [asyncio.create_task(gateway.complete(name)) for name in sorted(others)]
        await until(lambda: others <= demand._loads.keys())
        await gateway.client.get("/v1/models")  # the loop has run

        assert demand._side_by_side == {"a", "b"}
        assert not any(locks.is_loading(name) for name in others)
        held_loads.may_end.set()
        assert [await answer for answer in answers.values()] == ["a a ", "b b "]
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
        assert demand._side_by_side == set()


async def test_load_that_is_measured_does_not_starve(repository, live_gateway, held_loads):
    """Loads side by side that come later wait for it."""
    write(repository, "a", "b", "measured")
    for name in "ab":
        options(repository, name, "memory_bytes: 1000")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=1 << 40) as gateway:
        demand: Any = gateway.registry.uses.demand
        locks = gateway.registry.locks
        answers = [asyncio.create_task(text(gateway, "a"))]
        await until(lambda: locks.is_loading("a"))
        answers.append(asyncio.create_task(text(gateway, "measured")))
        await until(lambda: demand._to_measure == {"measured"})
        answers.append(asyncio.create_task(text(gateway, "b")))
        await until(lambda: "b" in demand._loads)
        await gateway.client.get("/v1/models")  # the loop has run

        assert demand._side_by_side == {"a"}
        held_loads.may_end.set()
        assert await asyncio.gather(*answers) == ["a a ", "measured measured ", "b b "]
        assert demand._to_measure == set()


async def test_memory_limit(repository, live_gateway):
    """Sizes come from the options; a model that can never fit evicts none."""
    write(repository, "a", "b", "c", "huge")
    for name in "abc":
        options(repository, name, "memory_bytes: 40")
    options(repository, "huge", "memory_bytes: 101")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=100) as gateway:
        for name in "abc":
            await text(gateway, name)
        refused = await gateway.complete("huge")

        assert loaded(gateway) == {"b", "c"}
    assert refused.status_code == 503
    assert "needs 101 bytes; all models may use 100" in refused.json()["error"]["message"]


async def test_busy_model_is_not_evicted(repository, live_gateway):
    """A load waits until a model becomes idle."""
    write(repository, "a", hang_after_tokens=1, answer_tokens=25)
    write(repository, "b")
    async with live_gateway(**ON_DEMAND, max_loaded_models=1) as gateway:
        await text(gateway, "a", max_tokens=1)
        busy = HeldEngine("a")
        long = asyncio.create_task(text(gateway, "a", max_tokens=25))
        await busy.hangs()
        demand: Any = gateway.registry.use("a")._uses.demand
        waiting = asyncio.create_task(text(gateway, "b"))
        await until(lambda: "b" in demand._loads)
        await asyncio.sleep(0.05)
        assert (loaded(gateway), waiting.done()) == ({"a"}, False)
        busy.release()
        answer = await waiting

        assert (long.done(), answer) == (True, "b b ")
        assert await long == "a " * 25
        assert loaded(gateway) == {"b"}


async def test_timeout_waiting_for_room(repository, live_gateway):
    """The request fails; the running requests continue."""
    write(repository, "a", hang_after_tokens=1, answer_tokens=20)
    write(repository, "b")
    async with live_gateway(**ON_DEMAND, max_loaded_models=1) as gateway:
        await text(gateway, "a", max_tokens=1)
        busy = HeldEngine("a")
        long = asyncio.create_task(text(gateway, "a", max_tokens=20))
        await busy.hangs()
        # Not from the start: on a busy machine the load itself may take as long.
        demand: Any = gateway.registry.use("a")._uses.demand
        demand._limits = replace(demand._limits, wait_s=0.3)
        refused = await gateway.complete("b")
        busy.release()

        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_unavailable"
        assert await long == "a " * 20


@pytest.mark.parametrize("obstacle", ["a busy model", "an unload that does not end"])
async def test_a_load_that_waits_for_room_blocks_no_other(
    repository, live_gateway, monkeypatch, obstacle
):
    """Models that fit load meanwhile; the load continues once there is room."""
    sizes = {"a": 60, "b": 60, "c": 30}
    write(repository, "a", hang_after_tokens=1, answer_tokens=20)
    write(repository, "b", "c")
    for name, size in sizes.items():
        options(repository, name, f"memory_bytes: {size}")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=100) as gateway:
        await text(gateway, "a", max_tokens=1)
        may_end, busy = asyncio.Event(), HeldEngine("a")
        if obstacle == "a busy model":
            long = asyncio.create_task(text(gateway, "a", max_tokens=20))
            await busy.hangs()
        else:
            unload = gateway.registry.unload

            async def hangs(victim: str) -> None:
                await may_end.wait()
                await unload(victim)

            monkeypatch.setattr(gateway.registry, "unload", hangs)
        waiting = asyncio.create_task(text(gateway, "b"))
        demand: Any = gateway.registry.use("b")._uses.demand
        await until(lambda: "b" in demand._loads)

        assert await text(gateway, "c") == "c c "
        assert (loaded(gateway), waiting.done()) == ({"a", "c"}, False)
        may_end.set()
        if obstacle == "a busy model":
            busy.release()
            await long
        assert await waiting == "b b "
        assert "a" not in loaded(gateway)


async def test_a_load_without_room_is_not_overtaken(repository, live_gateway, monkeypatch):
    """Its room appears during another load, whose end a later request waits for already."""
    write(repository, *"abcd")
    for name, size in {"a": 60, "b": 60, "c": 30, "d": 60}.items():
        options(repository, name, f"memory_bytes: {size}")
    order: list[str] = []
    may_load, may_unload = asyncio.Event(), asyncio.Event()
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=100) as gateway:
        await text(gateway, "a")
        load, unload = gateway.registry.load, gateway.registry.unload

        async def held_load(name: str) -> None:
            order.append(name)
            if name == "c":
                await may_load.wait()
            await load(name)

        async def held_unload(name: str) -> None:
            if name == "a":
                await may_unload.wait()
            await unload(name)

        monkeypatch.setattr(gateway.registry, "load", held_load)
        monkeypatch.setattr(gateway.registry, "unload", held_unload)
        demand: Any = gateway.registry.use("a")._uses.demand
        # One load at a time, although the options give the sizes
        monkeypatch.setattr(demand._capacity, "must_measure", lambda name: True)
        requests = [asyncio.create_task(text(gateway, "b"))]
        await until(lambda: "a" in demand._evictions)
        requests.append(asyncio.create_task(text(gateway, "c")))
        await until(lambda: order == ["c"])
        requests.append(asyncio.create_task(text(gateway, "d")))
        await until(lambda: len(demand._load_lock._waiters or ()) == 1)
        may_unload.set()
        await until(lambda: len(demand._load_lock._waiters) == 2)
        may_load.set()

        assert await asyncio.gather(*requests) == ["b b ", "c c ", "d d "]
    assert order == ["c", "b", "d"]


async def test_failed_load(repository, live_gateway, monkeypatch):
    """Requests get the reason without a new attempt during the backoff; other models are
    unaffected.
    """
    write(repository, "bad", fail_at_load="no weights")
    write(repository, "good")
    monkeypatch.setattr(on_demand, "RETRY_S", 60)
    async with live_gateway(**ON_DEMAND) as gateway:
        await text(gateway, "good")
        first = await gateway.complete("bad")
        write(repository, "bad")  # mended, but it is not tried again so soon
        second = await gateway.complete("bad")
        again = await text(gateway, "good")

    assert (first.status_code, second.status_code, again) == (503, 503, "good good ")
    assert "no weights" in first.json()["error"]["message"]
    assert first.json() == second.json()


async def test_retry_after_backoff(repository, live_gateway, monkeypatch):
    """A repaired model loads after the backoff."""
    write(repository, "bad", fail_at_load="no weights")
    monkeypatch.setattr(on_demand, "RETRY_S", 0)
    async with live_gateway(**ON_DEMAND) as gateway:
        assert (await gateway.complete("bad")).status_code == 503
        write(repository, "bad")
        assert await text(gateway, "bad") == "bad bad "


async def test_alternating_evictions(repository, live_gateway):
    """Two models with room for one, requested concurrently: every response is complete."""
    write(repository, "a", "b")
    async with live_gateway(**ON_DEMAND, max_loaded_models=1) as gateway:
        names = ["a", "b"] * 20
        answers = await asyncio.gather(*(text(gateway, name) for name in names))

    assert answers == [f"{name} {name} " for name in names]


async def test_unserved_names_load_nothing(repository, live_gateway):
    """Unknown names and composing models are rejected as usual."""
    write(repository, "part")
    options(repository, "part", "ensemble: whole")
    async with live_gateway(**ON_DEMAND) as gateway:
        refused = [await gateway.complete(name) for name in ("part", "nobody", "a:b", "@", ":")]

        assert [response.status_code for response in refused] == [404] * 5
        assert loaded(gateway) == set()


async def test_measured_size(repository, live_gateway):
    """A model without the option counts with the memory that its load added."""
    write(repository, "a", "b")
    async with live_gateway(**ON_DEMAND, max_model_memory_bytes=2**50) as gateway:
        await text(gateway, "a")
        demand: Any = gateway.registry.use("a")._uses.demand
        assert demand._capacity.size_bytes("a") >= 0
        assert demand._capacity.size_bytes("b") == 0


KINDS = [
    ("chat", "/v1/embeddings", {"input": "x"}),
    ("chat", "/v1/pooling", {"input": "x"}),
    ("chat", "/v1/rerank", {"query": "x", "documents": ["y"]}),
    ("chat", "/v1/classify", {"input": "x"}),
    ("classification", "/v1/moderations", {"input": "x"}),
    ("chat", "/v1/audio/speech", {"input": "x", "voice": "v"}),
    ("embeddings", "/v1/completions", {"prompt": "x"}),
    ("embeddings", "/v1/responses", {"input": "x"}),
    (
        "embeddings",
        "/v1/messages",
        {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]},
    ),
]


@pytest.mark.parametrize(("capability", "path", "body"), KINDS)
async def test_request_of_another_kind_than_the_options_tell_loads_nothing(
    repository, live_gateway, capability, path, body
):
    """Such a load would take minutes, and the room of a model in use, for a 400."""
    write(repository, "a", "b")
    options(repository, "b", f"capabilities: [{capability}]\naliases: [other]")
    async with live_gateway(**ON_DEMAND, max_loaded_models=1) as gateway:
        assert await text(gateway, "a") == "a a "
        response = await gateway.client.post(path, json={"model": "other", **body})

        assert response.status_code == 400, response.text
        assert "'other' does not" in response.text
        assert loaded(gateway) == {"a"}


async def test_options_without_a_kind_do_not_refuse_a_request(repository, live_gateway):
    """Images tell nothing of a model's kind, and chat models complete texts too."""
    write(repository, "a", "b")
    options(repository, "a", "capabilities: [images]")
    options(repository, "b", "capabilities: [chat]")
    async with live_gateway(**ON_DEMAND) as gateway:
        assert [await text(gateway, name) for name in "ab"] == ["a a ", "b b "]
