"""A chat's guard beside the limits of keys and of loaded models."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from openai_frontend.triton import engine_sleep
from tests import mock_models
from tests.api.models.conftest import LiveGateway
from tests.api.models.test_on_demand import ON_DEMAND, options
from tests.core.triton.waiting import until
from tests.fast.auth import key_files

SENTENCE = ["word "] * 39 + ["end. "]
MAPPING = "moderation: {labels: {bad: hate}, threshold: 1.0}"  # the mock's scores are below
OTHER: dict[str, Any] = {"moderation": {"model": "second"}}
MODERATION = {"model": "guard", "policy": {"output": {"mode": "block"}}}


def write(
    repository, *chats: str, guards: Sequence[str] = ("guard",), size: str = "", **engine: Any
) -> None:
    """Chat models that answer two sentences, and their guards. `size` are options of all."""
    for name in chats:
        answers = {"tokens": [*SENTENCE, *SENTENCE], "answer_tokens": 2 * len(SENTENCE)}
        mock_models.write_with_tokenizer(repository, name, **answers, **engine)
        options(repository, name, size)
    for name in guards:
        classes = {"tasks": ["classify"], "labels": ["bad"]}
        mock_models.write_with_tokenizer(repository, name, **classes, **engine)
        options(repository, name, f"{size}\n{MAPPING}")


async def answer(
    gateway: LiveGateway, model: str, guard: str = "guard", **fields: Any
) -> tuple[str, dict[str, Any]]:
    response = await gateway.chat(model, moderation={**MODERATION, "model": guard}, **fields)
    assert response.status_code == 200, response.text
    said = response.json()
    assert said["moderation"]["output"]["type"] == "moderation_results"
    return said["choices"][0]["message"]["content"], said["usage"]


async def test_tokens_of_a_guard_do_not_end_a_chat(repository, live_gateway, tmp_path):
    """The chat has reserved nearly all tokens of its key, and each sentence needs more."""
    write(repository, "m")
    async with live_gateway(load_model=["*"]) as gateway:
        text, usage = await answer(gateway, "m")
    needed = usage["total_tokens"] + usage["prompt_tokens"]  # the guard reads the prompt first
    limit = needed + len(SENTENCE) // 2
    keys = key_files.write(tmp_path / "keys.yaml", key_files.key("k", tokens_per_minute=limit))
    async with live_gateway(load_model=["*"], keys_file=keys) as gateway:
        gateway.client.headers.update(key_files.bearer("k"))
        limited, _ = await answer(gateway, "m", max_tokens=len(SENTENCE) * 2)
        later = await gateway.chat("m")

    assert limited == text == "".join(SENTENCE * 2)
    assert later.status_code == 429  # the guard's tokens count


async def test_guard_loads_before_the_models_that_it_guards(repository, live_gateway):
    """Else each of two chats would keep its model, and both would wait for room for the guard."""
    write(repository, "a", "b")
    limits = {"max_loaded_models": 2, "model_load_timeout_s": 60}
    async with live_gateway(**ON_DEMAND, **limits) as gateway:
        answers = await asyncio.gather(answer(gateway, "a"), answer(gateway, "b"))

    assert [text for text, _ in answers] == ["".join(SENTENCE * 2)] * 2


async def test_chats_with_other_guards_do_not_wait_for_each_other(repository, live_gateway):
    """Each would keep its guard, and wait for room for its model until the timeout."""
    chats = [("a", "first"), ("b", "second"), ("a", "second"), ("b", "first")]
    write(repository, "a", "b", guards=("first", "second"))
    limits = {"max_loaded_models": 2, "model_load_timeout_s": 15}
    async with live_gateway(**ON_DEMAND, **limits) as gateway:
        answers = await asyncio.gather(*(answer(gateway, *each) for each in chats * 2))
        alone = await answer(gateway, "b", "first")

    assert [text for text, _ in [*answers, alone]] == ["".join(SENTENCE * 2)] * 9


SIZED = "memory_bytes: 10"


@pytest.mark.parametrize(
    ("limits", "size"),
    [({}, ""), ({"max_loaded_models": 4}, ""), ({"max_model_memory_bytes": 40}, SIZED)],
)
async def test_guards_and_models_that_all_fit_load_at_the_same_time(
    repository, live_gateway, held_loads, limits, size
):
    """A slow load of one chat does not delay the others."""
    write(repository, "a", "b", guards=("first", "second"), size=size)
    async with live_gateway(**ON_DEMAND, **limits) as gateway:
        chats = [
            asyncio.create_task(answer(gateway, *pair))
            for pair in (("a", "first"), ("b", "second"))
        ]
        await until(lambda: all(map(gateway.registry.load_phase, ("first", "second"))))
        held_loads.may_end.set()
        answers = await asyncio.gather(*chats)

    assert [text for text, _ in answers] == ["".join(SENTENCE * 2)] * 2


async def test_client_that_leaves_lets_chats_with_other_guards_continue(
    repository, live_gateway, held_loads
):
    """A chat of the same guard and model does not wait for it; one that waits has a timeout."""
    write(repository, "a", "b", guards=("first", "second"))
    options(repository, "second", f"queue_timeout_s: 0.2\n{MAPPING}")
    async with live_gateway(**ON_DEMAND, max_loaded_models=3) as gateway:
        leaves, same, late = (
            asyncio.create_task(gateway.chat(name, moderation={"model": guard}))
            for name, guard in (("a", "first"), ("a", "first"), ("b", "second"))
        )
        response = await late
        leaves.cancel()
        held_loads.may_end.set()
        statuses = [(await same).status_code, (await gateway.chat("b", **OTHER)).status_code]

    assert response.status_code == 503, response.text
    load = "Chats with other guards load their models; 0 queued for a guard and a model."
    assert response.json()["error"]["message"].endswith(load)
    assert statuses == [200, 200]


async def test_chats_with_other_guards_do_not_wait_for_each_other_to_wake(repository, live_gateway):
    """All models stay loaded, and two of them fit awake: each chat would keep one, and wait for
    room for the other until the timeout.
    """
    guards, size = ("first", "second"), "memory_bytes: 100\nsleep_level: 1"
    write(repository, "a", "b", guards=guards, size=size, sleep_frees_bytes=90)
    limits = {"max_model_memory_bytes": 225, "model_load_timeout_s": 15}
    async with live_gateway(**ON_DEMAND, **limits) as gateway:
        for pair in zip("ab", guards, strict=True):
            await answer(gateway, *pair)
        pairs = [(chat, guard) for guard in guards for chat in "ab"]
        answers = await asyncio.gather(*(answer(gateway, *each) for each in pairs * 2))

        assert gateway.registry.loaded() == {"a", "b", *guards}
    assert [text for text, _ in answers] == ["".join(SENTENCE * 2)] * 8


@pytest.mark.parametrize(
    ("asleep", "reason"),
    [("a", "its engine did not wake: EngineError: out of memory"), ("guard", "'guard' cannot")],
)
async def test_model_that_does_not_wake_fails_chats_with_the_reason(
    repository, live_gateway, asleep, reason
):
    write(repository, "a", failed_wakes=1)
    settings = {"enable_model_management": True, "engine_max_restarts": 0}
    async with live_gateway(**ON_DEMAND, **settings, load_model=["*"]) as gateway:
        for name in ("a", "guard"):
            await gateway.registry.ensure_loaded(name)
        slept = await gateway.change(asleep, "sleep")
        response = await gateway.chat("a", moderation=MODERATION)

    assert (slept.status_code, response.status_code) == (200, 503), response.text
    assert reason in response.text


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"max_loaded_models": 1}, "the limit is 1 (max_loaded_models)"),
        ({"max_model_memory_bytes": 100}, "need 120 bytes together; all models may use 100"),
    ],
)
@pytest.mark.parametrize("model", ["a", None])
async def test_guard_without_room_beside_its_model_is_refused_at_once(
    repository, live_gateway, limits, limit, model
):
    """The chat would keep the guard loaded, and wait for room that only its own end makes."""
    write(repository, "a")
    options(repository, "a", "memory_bytes: 60")
    options(repository, "guard", f"memory_bytes: 60\n{MAPPING}")
    async with live_gateway(**ON_DEMAND, **limits) as gateway:
        response = await gateway.chat(model, moderation=MODERATION)
        plain = await gateway.chat("a", max_tokens=1)

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "model_unavailable")
    assert "'a' and 'guard'" in error["message"]
    assert limit in error["message"]
    assert plain.status_code == 200


async def test_guard_of_another_kind_loads_and_wakes_nothing(repository, live_gateway):
    """A guard needs the option `moderation`, and its chat a model that generates: both are known
    before a load.
    """
    write(repository, "a", "b")
    settings = {**ON_DEMAND, "enable_model_management": True, "max_loaded_models": 1}
    async with live_gateway(**settings) as gateway:
        loaded_b = await gateway.chat("b")
        await gateway.change("b", "sleep")
        pairs = [("a", "b"), ("a", "a"), ("guard", "guard"), ("missing", "guard")]
        responses = [await gateway.chat(a, moderation={"model": guard}) for a, guard in pairs]
        statuses = [each.status_code for each in responses]
        errors = [each.json()["error"] for each in responses]

        assert loaded_b.status_code == 200
        assert statuses == [400, 400, 400, 404], errors
        params = ["moderation.model", "moderation.model", "model", "model"]
        assert params == [each["param"] for each in errors]
        assert gateway.registry.loaded() == {"b"}
        assert engine_sleep.is_sleeping("b")
