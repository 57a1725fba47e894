"""Clients load and unload adapters with vLLM's requests."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_frontend.admission.queue import ConcurrencyLimits
from tests import mock_models
from tests.api.models.conftest import EXPLICIT, LiveGateway
from tests.core.triton.waiting import until
from tests.fast.auth import key_files
from tests.fast.lora.files import write_peft

MANAGED: dict[str, Any] = {"enable_model_management": True, "lora_poll_interval_s": 3600}


def write(repository: Path, name: str = "m", *adapters: str) -> Path:
    """A model that says "base", and its folder of adapters, each of which says its own name."""
    mock_models.write_with_tokenizer(
        repository, name, max_lora_rank=16, tokens=["base"], answer_tokens=1
    )
    (repository / name / "openai_frontend.yaml").write_text("adapter_folder: adapters\n")
    folder = repository / name / "adapters"
    folder.mkdir()
    for adapter in adapters:
        write_peft(folder / adapter)
    return folder


async def ask(gateway: LiveGateway, what: str, **fields: Any) -> httpx.Response:
    return await gateway.client.post(f"/v1/{what}_lora_adapter", json=fields)


async def said(gateway: LiveGateway, model: str) -> str:
    text: str = (await gateway.complete(model)).json()["choices"][0]["text"]
    return text


def error(response: httpx.Response) -> tuple[int, str | None, str]:
    """Status, parameter and message."""
    told = response.json()["error"]
    return response.status_code, told["param"], told["message"]


async def test_load_and_unload(repository, live_gateway):
    """An adapter loads by name as soon as its folder exists, without waiting for a scan."""
    folder = write(repository)
    async with live_gateway(**MANAGED) as gateway:
        before = await gateway.complete("m:one")
        write_peft(folder / "one")
        loaded = await ask(gateway, "load", lora_name="one", model="m")
        answers = [await said(gateway, name) for name in ("m:one", "one", "m")]
        listed = await gateway.listed()
        unloaded = await ask(gateway, "unload", lora_name="one", model="m")
        after = await gateway.complete("m:one")
        await gateway.registry.refresh_adapters()  # the folder is still there
        still = await gateway.listed()
        again = await ask(gateway, "load", lora_name="m:one")
        back = await said(gateway, "m:one")

    assert error(before)[0] == error(after)[0] == 404
    assert {key: loaded.json()[key] for key in ("id", "root", "parent", "ready")} == {
        "id": "m:one", "root": "one", "parent": "m", "ready": True,
    }  # fmt: skip
    assert answers == [" one", " one", "base"]
    assert (listed, still) == (["m", "m:one"], ["m"])
    assert unloaded.json() == {"id": "m:one", "object": "model", "deleted": True}
    assert (again.status_code, back) == (200, " one")


async def test_openai_client_sees_the_parent(repository, live_gateway):
    """The SDK lists adapters, retrieves one, and streams from it."""
    write(repository, "m", "one")
    async with (
        live_gateway() as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.client.base_url}/v1", api_key="none") as client,
    ):
        models = {model.id: getattr(model, "parent", None) async for model in client.models.list()}
        model = await client.models.retrieve("m:one")
        stream = await client.chat.completions.create(
            model="m:one", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]

    assert models == {"m": None, "m:one": "m"}
    assert model.to_dict()["root"] == "one"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " one"
    assert {chunk.model for chunk in chunks} == {"m:one"}


async def test_adapter_loads_its_base_on_demand(repository, live_gateway):
    """A request for the adapter loads its base model."""
    write(repository, "m", "one")
    async with live_gateway(**EXPLICIT, load_model=[], load_on_demand=True) as gateway:
        answer = await said(gateway, "m:one")
        missing = await gateway.complete("m:nobody")

    assert answer == " one"
    assert error(missing)[0] == 404


async def test_folder_is_watched(repository, live_gateway):
    """Without requests, adapters appear and disappear at the configured interval."""
    folder = write(repository)
    async with live_gateway(lora_poll_interval_s=0.05) as gateway:
        write_peft(folder / ".on-its-way").rename(folder / "one")
        while "m:one" not in await gateway.listed():
            pass
        answer = await said(gateway, "m:one")
        (folder / "one").rename(folder / ".gone")
        while "m:one" in await gateway.listed():
            pass

    assert answer == " one"


@pytest.mark.parametrize("what", ["load", "unload"])
async def test_management_must_be_enabled(repository, live_gateway, what: str):
    """The error names the setting, and nothing changes."""
    write(repository, "m", "one")
    async with live_gateway() as gateway:
        refused = await ask(gateway, what, lora_name="one")
        listed = await gateway.listed()

    assert refused.json()["error"]["code"] == "model_management_off"
    assert error(refused)[0] == 403
    assert "'enable_model_management'" in error(refused)[2]
    assert listed == ["m", "m:one"]


async def test_rejected_requests(repository, live_gateway):
    """Invalid names, paths and unknown adapters are rejected; the loaded adapter keeps serving."""
    folder = write(repository, "m", "one")
    write(repository, "other", "shared")
    write_peft(folder / "shared")
    mock_models.write(repository, "plain")
    outside = write_peft(repository.parent / "outside")
    expected: list[tuple[str, dict[str, Any], int, str]] = [
        ("load", {"lora_name": "nobody"}, 404, "lora_name"),
        ("load", {"lora_name": "nobody", "model": "m"}, 404, "lora_name"),
        ("unload", {"lora_name": "nobody", "model": "m"}, 404, "lora_name"),
        ("load", {"lora_name": "one", "model": "nobody"}, 404, "model"),
        ("load", {"lora_name": "one", "model": "m:one"}, 400, "model"),
        ("load", {"lora_name": "one", "model": "plain"}, 400, "model"),
        ("load", {"lora_name": "shared"}, 400, "model"),
        ("load", {"lora_name": "../outside", "model": "m"}, 400, "lora_name"),
        ("load", {"lora_name": str(outside), "model": "m"}, 400, "lora_name"),
        ("load", {"lora_name": "..", "model": "m"}, 400, "lora_name"),
        ("load", {"lora_name": "", "model": "m"}, 400, "lora_name"),
        ("load", {"lora_name": "one\0", "model": "m"}, 400, "lora_name"),
        ("unload", {"lora_name": "../one", "model": "m"}, 400, "lora_name"),
        ("load", {"lora_name": "x", "model": "m", "lora_path": str(outside)}, 400, "lora_path"),
        ("load", {"lora_name": "one", "model": "m", "lora_path": "../one"}, 400, "lora_path"),
        ("load", {"lora_name": "one", "is_3d_lora_weight": True}, 400, "is_3d_lora_weight"),
        ("unload", {"lora_name": "one", "lora_int_id": 1}, 400, "lora_int_id"),
        ("load", {"lora_name": 1}, 400, "lora_name"),
        ("load", {}, 400, "lora_name"),
    ]
    async with live_gateway(**MANAGED) as gateway:
        told = [error(await ask(gateway, what, **fields)) for what, fields, *_ in expected]
        answer = await said(gateway, "m:one")

    assert [(status, param) for status, param, _ in told] == [row[2:] for row in expected]
    assert str(repository.parent) not in " ".join(message for *_, message in told)
    assert answer == " one"


async def test_adapters_outside_a_keys_models(repository, live_gateway, tmp_path):
    """They do not exist for the key: an adapter is a model name of its own."""
    keys = key_files.write(
        tmp_path / "keys.yaml", key_files.key("narrow", models=["n", "n:*"]), key_files.key("all")
    )
    for name in ("m", "n"):
        write(repository, name, "one")
    async with live_gateway(keys_file=keys, **MANAGED) as gateway:
        gateway.client.headers.update(key_files.bearer("narrow"))
        loaded = await ask(gateway, "load", lora_name="one")  # not asked which of the two is meant
        refused = [
            error(await ask(gateway, what, **fields))
            for what in ("load", "unload")
            for fields in ({"lora_name": "m:one"}, {"lora_name": "one", "model": "m"})
        ]
        gateway.client.headers.update(key_files.bearer("all"))
        still = await gateway.listed()

    message = "The model 'm:one' does not exist, or the key may not use it."
    assert loaded.json()["id"] == "n:one"
    assert refused == [(404, "lora_name", message)] * 4
    assert sorted(still) == ["m", "m:one", "n", "n:one"]


async def test_name_clash(repository, live_gateway):
    """409 names both sources; neither adapter serves until one is removed."""
    folder = write(repository, "m", "one")
    write_peft(repository / "m" / "elsewhere")
    (repository / "m" / "openai_frontend.yaml").write_text(
        "adapter_folder: adapters\nadapters: {one: elsewhere}\n"
    )
    async with live_gateway(**MANAGED) as gateway:
        refused = await ask(gateway, "load", lora_name="one")
        answer = await gateway.complete("m:one")
        (folder / "one").rename(folder / ".one")
        loaded = await ask(gateway, "load", lora_name="one", lora_path="one", load_inplace=True)

    assert refused.json()["error"]["code"] == "two_adapters"
    assert error(refused)[0] == 409
    assert "from the option 'adapters', one from the option 'adapter_folder'" in error(refused)[2]
    assert error(answer)[0] == 503
    assert loaded.status_code == 200


async def test_invalid_files(repository, live_gateway):
    """The error contains the reason and no path."""
    folder = write(repository)
    write_peft(folder / "wide", rank=64)
    async with live_gateway(**MANAGED) as gateway:
        refused = await ask(gateway, "load", lora_name="wide")

    assert error(refused)[0] == 503
    assert "its rank of 64 exceeds the model's max_lora_rank of 16" in error(refused)[2]
    assert str(folder) not in error(refused)[2]


async def test_adapter_rejected_by_its_backend(repository, live_gateway):
    """A load tries the adapter with one token; after a failure it is not a model."""
    folder = write(repository)
    model = repository / "m" / "1" / "model.json"
    settings = '{"max_lora_rank": 16, "fail_after_tokens": 0, "tokenizer": "./tokenizer"}'
    model.write_text(settings)
    write_peft(folder / "one")
    async with live_gateway(**MANAGED) as gateway:
        refused = await ask(gateway, "load", lora_name="one")
        listed = await gateway.listed()

    assert error(refused)[0] == 503
    assert "'m:one' could not be loaded: " in error(refused)[2]
    assert listed == ["m"]


async def test_adapter_whose_base_fails_stays_loaded(repository, live_gateway):
    """The engine dies while it tries the adapter; after its restart the adapter still serves."""
    folder = write(repository, "m", "one")
    settings = '{"max_lora_rank": 16, "die_after_tokens": 0, "tokenizer": "./tokenizer"}'
    model = repository / "m" / "1" / "model.json"
    healthy = model.read_text()
    model.write_text(settings)
    async with live_gateway(**MANAGED) as gateway:
        model.write_text(healthy)
        refused = await ask(gateway, "load", lora_name="one")
        listed = await gateway.listed()

    assert folder.is_dir()
    assert error(refused)[0] == 503
    assert listed == ["m", "m:one"]


async def test_adapter_unloaded_while_a_request_waits(repository, live_gateway):
    """The waiting request gets a 404, as if it came now: it was valid."""
    write(repository, "m", "one")
    async with live_gateway(**MANAGED, max_concurrent_requests=1) as gateway:
        slots = gateway.state.limiter.slots("m", ConcurrencyLimits())
        await slots.acquire(1)
        waiting = asyncio.create_task(gateway.complete("m:one"))
        await until(lambda: len(slots.queue) == 1)
        unloaded = await ask(gateway, "unload", lora_name="one")
        slots.release(1)
        response = await waiting

    assert unloaded.status_code == 200
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
