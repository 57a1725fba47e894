"""Clients load and unload models."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests import mock_models
from tests.api.models.conftest import EXPLICIT, HELD
from tests.core.engines.held_engine import HeldEngine
from tests.core.triton.waiting import until


def error(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message."""
    told = response.json()["error"]
    return response.status_code, told["code"], told["message"]


async def test_load_and_unload(repository, live_gateway):
    """Each call returns when it is done: the model then serves, or no longer does."""
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
        (
            {"enable_model_management": True, "model_control_mode": "none"},
            {"m": (409, "model_control_mode")},
        ),
        (
            EXPLICIT,
            {"nobody": (404, "model_not_found"), "org/m": (404, "model_not_found")}
            | dict.fromkeys(NO_NAMES, (400, "invalid_value")),
        ),
    ],
    ids=["off", "mode", "names"],
)
async def test_rejected_changes(
    repository, live_gateway, settings: dict[str, Any], expected: dict[str, tuple[int, str]]
):
    """The error names the setting or the problem; the model keeps serving."""
    mock_models.write_with_tokenizer(repository, "m", answer_tokens=1)
    async with live_gateway(**settings) as gateway:
        for what in ("load", "unload"):
            refused = {name: error(await gateway.change(name, what)) for name in expected}
            assert {name: told[:2] for name, told in refused.items()} == expected
        answer = await gateway.complete("m")

    for status, code, message in refused.values():
        assert status not in (403, 409) or code.removesuffix("_off") in message
    assert answer.status_code == 200


async def test_failed_load(repository, live_gateway):
    """The error has Triton's reason; a progress stream ends with the same error."""
    mock_models.write_with_tokenizer(repository, "m", fail_at_load="no weights")
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        refused = await gateway.change("m", "load")
        streamed = await gateway.change("m", "load", json={"stream": True})

    assert error(refused)[:2] == (503, "model_unavailable")
    assert "no weights" in error(refused)[2]
    assert events(streamed)[-1] == refused.json()


async def test_failed_reload_keeps_the_model(repository, live_gateway):
    """The caller gets the reason; the old model keeps serving."""
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
    """The events of a stream."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize(
    "asked", [{"json": {"stream": True}}, {"headers": {"accept": "text/event-stream"}}]
)
async def test_unload_progress(repository, live_gateway, asked: dict[str, Any]):
    """The unload waits for running requests and reports their number."""
    mock_models.write_with_tokenizer(repository, "m", hang_after_tokens=1, answer_tokens=50)
    async with live_gateway(**EXPLICIT) as gateway:
        engine = HeldEngine("m")
        running = asyncio.create_task(gateway.complete("m", max_tokens=50))
        await engine.hangs()
        unload = gateway.client.stream("POST", "/v1/models/m/unload", **asked)
        async with unload as response, asyncio.timeout(60):
            received = ""
            async for text in response.aiter_text():
                received += text
                if '"UNLOADING"' in received:  # the request lasts until then
                    engine.release()
        told = events(httpx.Response(200, headers=response.headers, text=received))
        answer = await running

    assert answer.json()["choices"][0]["finish_reason"] is not None
    assert {event["object"] for event in told} == {"model.progress"}
    assert ("UNLOADING", 1) in [(event["state"], event["running"]) for event in told]
    assert [event["done"] for event in told[-2:]] == [False, True]
    assert told[-1]["state"] == "UNAVAILABLE"


async def test_concurrent_change_is_a_conflict(repository, live_gateway):
    """The second caller gets 409 immediately; the first change continues."""
    mock_models.write_with_tokenizer(repository, "m", tokens_per_second=50)
    async with live_gateway(**EXPLICIT) as gateway:
        running = asyncio.create_task(gateway.complete("m", max_tokens=4000))
        await until(lambda: gateway.registry.use("m").running == 1)
        first = asyncio.create_task(gateway.change("m", "unload"))
        await until(lambda: "m" in gateway.registry.locks)
        second = await gateway.change("m", "load")
        running.cancel()

        assert error(second)[:2] == (409, "model_changing")
        assert (await first).status_code == 200


async def test_change_continues_after_disconnect(repository, live_gateway, held_loads):
    """A load continues if its client disconnects."""
    mock_models.write_with_tokenizer(repository, "m", answer_tokens=1)
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        leaving = asyncio.create_task(gateway.change("m", "load"))
        await until(held_loads.begun.is_set)
        leaving.cancel()
        await asyncio.wait([leaving])
        await asyncio.sleep(0.05)  # the server learns of it
        held_loads.may_end.set()
        await until(lambda: "m" not in gateway.registry.locks)

        assert (await gateway.complete("m")).status_code == 200


async def test_phase_of_a_load(repository, live_gateway, held_loads):
    """The progress stream has it, and the card of a model that was not loaded before."""
    mock_models.write_with_tokenizer(repository, "m", answer_tokens=1)
    async with live_gateway(**EXPLICIT, load_model=[]) as gateway:
        load = gateway.client.stream("POST", "/v1/models/m/load", json={"stream": True})
        async with load as response, asyncio.timeout(60):
            lines = response.aiter_lines()
            while f'"state":"LOADING","phase":"{HELD}"' not in await anext(lines):
                pass
            card = await gateway.client.get("/v1/models/m")
            held_loads.may_end.set()
            end = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")][-1]
        loaded = await gateway.client.get("/v1/models/m")

    assert card.json()["error"] == f"it is loading: {HELD}"
    assert card.json()["status"] == {"value": "loading"}
    assert (end["state"], end["phase"], end["done"]) == ("READY", None, True)
    assert loaded.json()["error"] is None


async def test_unknown_field(repository, live_gateway):
    """The field policy is that of all requests."""
    mock_models.write_with_tokenizer(repository, "m")
    async with live_gateway(**EXPLICIT, unknown_fields="reject") as gateway:
        refused = await gateway.change("m", "load", json={"config": "{}"})
        bad = await gateway.change("m", "load", json={"stream": "yes"})

    assert error(refused)[:2] == (400, "unknown_parameter")
    assert error(bad)[:2] == (400, "invalid_type")


async def test_new_folder(repository, live_gateway):
    """A new model loads at once, before any snapshot of the repository contains it."""
    async with live_gateway(**EXPLICIT) as gateway:
        for number in range(3):
            mock_models.write_with_tokenizer(repository, f"new{number}")
            assert (await gateway.change(f"new{number}", "load")).status_code == 200
