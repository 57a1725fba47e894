"""Models that clients load and unload."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.models.conftest import EXPLICIT
from tests.triton.waiting import until


def error(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message."""
    told = response.json()["error"]
    return response.status_code, told["code"], told["message"]


async def test_a_model_comes_and_goes(repository, live_gateway):
    """Each call returns when it is done: the model answers after the one, not after the other."""
    mock_models.write_with_tokenizer(repository, "m", tokens=["a"], answer_tokens=1)
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        before = await gateway.complete("m")
        loaded = await gateway.change("m", "load")
        answer = await gateway.complete("m")
        unloaded = await gateway.change("m", "unload")
        after = await gateway.complete("m")

    assert error(before)[:2] == error(after)[:2] == (503, "model_unavailable")
    assert (loaded.status_code, loaded.json()["ready"]) == (200, True)
    assert (unloaded.status_code, unloaded.json()["error"]) == (200, "it is not loaded")
    assert answer.json()["choices"][0]["text"] == "a"


NO_NAMES = ("..%2F..%2Fetc", "models/..%2Fm", "m%00", "m@1")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"m": (403, "model_management_off")}),
        ({"enable_model_management": True}, {"m": (409, "model_control_mode")}),
        (
            EXPLICIT,
            {"nobody": (404, "model_not_found"), "org/m": (404, "model_not_found")}
            | dict.fromkeys(NO_NAMES, (400, "invalid_value")),
        ),
    ],
    ids=["off", "mode", "names"],
)
async def test_a_change_that_is_refused(
    repository, live_gateway, settings: dict[str, Any], expected: dict[str, tuple[int, str]]
):
    """The reason names the setting, or what is wrong; the model goes on as it was."""
    mock_models.write_with_tokenizer(repository, "m", answer_tokens=1)
    async with live_gateway(**settings) as gateway:
        for what in ("load", "unload"):
            refused = {name: error(await gateway.change(name, what)) for name in expected}
            assert {name: told[:2] for name, told in refused.items()} == expected
        answer = await gateway.complete("m")

    for status, code, message in refused.values():
        assert status not in (403, 409) or code.removesuffix("_off") in message
    assert answer.status_code == 200


async def test_a_load_that_fails_says_why(repository, live_gateway):
    """By Triton's reason; a stream ends with the same error as its event."""
    mock_models.write_with_tokenizer(repository, "m", fail_at_load="no weights")
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        refused = await gateway.change("m", "load")
        streamed = await gateway.change("m", "load", json={"stream": True})

    assert error(refused)[:2] == (503, "model_unavailable")
    assert "no weights" in error(refused)[2]
    assert events(streamed)[-1] == refused.json()


async def test_a_reload_that_fails_leaves_the_model(repository, live_gateway):
    """Who reloads is told why; who asks the model is answered by it as it was."""
    mock_models.write_with_tokenizer(repository, "m", tokens=["old"], answer_tokens=1)
    async with live_gateway(**EXPLICIT, exit_timeout_s=0) as gateway:
        mock_models.write_with_tokenizer(repository, "m", fail_at_load="no weights")
        refused = await gateway.change("m", "load")
        answer = await gateway.complete("m")
        listed = await gateway.listed()

    assert "no weights" in error(refused)[2]
    assert answer.json()["choices"][0]["text"] == "old"
    assert listed == ["m"]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """What a stream tells, one after the other."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize(
    "asked", [{"json": {"stream": True}}, {"headers": {"accept": "text/event-stream"}}]
)
async def test_an_unload_tells_how_it_goes_on(repository, live_gateway, asked: dict[str, Any]):
    """It waits for the requests at work, and says for how many."""
    mock_models.write_with_tokenizer(repository, "m", tokens_per_second=50, answer_tokens=50)
    async with live_gateway(**EXPLICIT) as gateway:
        running = asyncio.create_task(gateway.complete("m", max_tokens=50))
        await until(lambda: gateway.registry.lease("m").running == 1)
        told = events(await gateway.change("m", "unload", **asked))
        answer = await running

    assert answer.json()["choices"][0]["finish_reason"] is not None
    assert {event["object"] for event in told} == {"model.progress"}
    assert ("UNLOADING", 1) in [(event["state"], event["running"]) for event in told]
    assert [event["done"] for event in told[-2:]] == [False, True]
    assert told[-1]["state"] == "UNAVAILABLE"


async def test_a_model_that_changes_is_not_changed_by_another(repository, live_gateway):
    """The second caller is told at once; the first change goes on."""
    mock_models.write_with_tokenizer(repository, "m", tokens_per_second=50)
    async with live_gateway(**EXPLICIT) as gateway:
        running = asyncio.create_task(gateway.complete("m", max_tokens=4000))
        await until(lambda: gateway.registry.lease("m").running == 1)
        first = asyncio.create_task(gateway.change("m", "unload"))
        await until(lambda: "m" in gateway.registry.locks)
        second = await gateway.change("m", "load")
        running.cancel()

        assert error(second)[:2] == (409, "model_changing")
        assert (await first).status_code == 200


async def test_a_change_goes_on_without_its_caller(repository, live_gateway):
    """Who begins a load and goes away has begun it."""
    mock_models.write_with_tokenizer(repository, "m", load_s=0.5, answer_tokens=1)
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        with pytest.raises(httpx.ReadTimeout):
            await gateway.change("m", "load", timeout=httpx.Timeout(30, read=0.1))
        await until(lambda: "m" not in gateway.registry.locks)

        assert (await gateway.complete("m")).status_code == 200


async def test_an_unknown_field_of_a_change(repository, live_gateway):
    """It is judged as in every other request."""
    mock_models.write_with_tokenizer(repository, "m")
    async with live_gateway(**EXPLICIT, unknown_fields="reject") as gateway:
        refused = await gateway.change("m", "load", json={"config": "{}"})
        bad = await gateway.change("m", "load", json={"stream": "yes"})

    assert error(refused)[:2] == (400, "unknown_parameter")
    assert error(bad)[:2] == (400, "invalid_type")


async def test_a_model_whose_folder_has_just_come(repository, live_gateway):
    """It can be loaded at once, though no snapshot of the repository has it yet."""
    async with live_gateway(**EXPLICIT) as gateway:
        for number in range(3):
            mock_models.write_with_tokenizer(repository, f"new{number}")
            assert (await gateway.change(f"new{number}", "load")).status_code == 200
