import asyncio
import json
import re
import shutil

import pytest

from openai_frontend import errors
from openai_frontend.runtime import background_tasks
from tests import mock_models
from tests.core.triton.generation_inputs import collect, count, generate, generation
from tests.core.triton.waiting import until

BROKEN_CONFIG = "backend: inprocess {"
BATCHES = mock_models.CONFIG + "max_batch_size: 8\n"


def with_engine(name: str) -> str:
    return mock_models.CONFIG.replace('"mock"', f'"{name}"')


def entry(server, name):
    (found,) = (entry for entry in server.model_index() if entry.name == name)
    return found


async def text(server, model="mock"):
    """The first token of an answer."""
    (response,) = await collect(server.infer(model, generation(stream=False, max_tokens=1)))
    return response.item("text_output")


async def test_models_to_load_at_start(repository, start_server):
    """In explicit mode, only the named models start."""
    for name in ("one", "other"):
        mock_models.write(repository, name)
    server = await start_server(startup_models=["other"])

    assert (server.model_is_ready("one"), server.model_is_ready("other")) == (False, True)


async def test_load(repository, start_server):
    """A model of the repository can be loaded later, and serves."""
    mock_models.write(repository, "mock")
    server = await start_server(startup_models=[])
    await server.load_model("mock")

    assert await count(generate(server, 4)) == 4


async def test_load_of_an_unknown_model(server):
    """Loading a model that is in no repository is rejected with its name."""
    with pytest.raises(errors.GatewayError, match="absent"):
        await server.load_model("absent")


async def test_load_outside_explicit_mode(repository, start_server):
    """Outside mode `explicit` a load is rejected with the reason."""
    mock_models.write(repository, "mock")
    server = await start_server(model_control_mode="none")

    with pytest.raises(errors.GatewayError, match="explicit"):
        await server.load_model("mock")


async def test_unload_waits(server):
    """When an unload returns, the model is gone and its engine released."""
    await server.unload_model("mock")

    assert (entry(server, "mock").reason, server.model_facts("mock")) == ("unloaded", None)


async def test_unload_waits_for_requests_in_flight(repository, start_server):
    """An unload returns after the requests in flight have finished."""
    mock_models.write(repository, "mock", tokens_per_second=100)
    server = await start_server()
    stream = generate(server, 20)
    running = asyncio.create_task(count(stream))
    await asyncio.sleep(0)
    await server.unload_model("mock")

    # The task itself may get its last response in the step of the loop after this one.
    assert (stream.finished, await running) == (True, 20)


async def test_unload_of_a_model_loaded_again_meanwhile(repository, start_server):
    """An unload that waits for a long request ends with it, even if the model was loaded again."""
    mock_models.write(repository, "mock", tokens_per_second=100)
    server = await start_server()
    running = asyncio.create_task(count(generate(server, 30)))
    await asyncio.sleep(0)
    unloading = asyncio.create_task(server.unload_model("mock"))
    await until(lambda: entry(server, "mock").state != "READY")
    mock_models.write(repository, "mock", tokens=["again"])
    await server.load_model("mock")
    async with asyncio.timeout(30):
        await unloading

    assert await running == 30
    assert await text(server) == b"again"


async def test_unloaded_model_is_unavailable(server):
    """A request to it is rejected, and the server continues."""
    await server.unload_model("mock")

    with pytest.raises(errors.GatewayError, match="mock"):
        generate(server, 1)
    assert server.is_live()


async def test_unload_of_an_unknown_model(server):
    """Unloading an unknown model changes nothing."""
    await server.unload_model("absent")

    assert [entry.name for entry in server.model_index()] == ["mock"]


async def test_load_after_unload(server):
    """A model that was unloaded can be loaded again."""
    await server.unload_model("mock")
    await server.load_model("mock")

    assert await count(generate(server, 2)) == 2


async def test_reload(repository, server):
    """A model whose files changed serves with the new ones after a load."""
    mock_models.write(repository, "mock", tokens=["new"])
    await server.load_model("mock")

    assert await text(server) == b"new"


async def test_load_after_the_engine_died(repository, start_server):
    """A model whose engine has died serves again after a load, although its files are the same."""
    mock_models.write(repository, "mock", die_after_tokens=3)
    server = await start_server()
    with pytest.raises(errors.ModelUnavailable):
        await collect(generate(server, 5))
    await server.load_model("mock")

    assert (server.is_ready(), await count(generate(server, 2))) == (True, 2)


async def test_reload_that_fails(repository, start_server):
    """The error has the reason, and the loaded model keeps serving."""
    mock_models.write(repository, "mock")
    server = await start_server(exit_timeout_s=0)
    mock_models.write(repository, "mock", fail_at_load="no weights")

    with pytest.raises(errors.GatewayError, match="no weights"):
        await server.load_model("mock")
    assert await count(generate(server, 3)) == 3


async def test_load_with_a_config(server):
    """A config in the load replaces the repository's."""
    config = server.model_config("mock")
    await server.load_model("mock", config=json.dumps({**config, "version_policy": {"all": {}}}))

    assert server.model_config("mock")["version_policy"] == {"all": {}}


async def test_load_with_files(server):
    """Files in the load define a model that is in no repository."""
    config = {"backend": "inprocess", "parameters": {"engine": {"string_value": "mock"}}}
    files = {"1/model.json": json.dumps({"tokens": ["given"]}).encode()}
    await server.load_model("made", config=json.dumps(config), model_files=files)

    assert await text(server, "made") == b"given"


async def test_load_with_an_invalid_config(server):
    """A config that is not JSON is rejected."""
    with pytest.raises(errors.GatewayError):
        await server.load_model("mock", config="{")


async def test_two_versions(repository, start_server):
    """Each version that the policy allows serves by number, and the highest without one."""
    config = mock_models.CONFIG + "version_policy { all {} }\n"
    mock_models.write(repository, "mock", config=config, tokens=["first"])
    second = repository / "mock" / "2"
    second.mkdir()
    (second / "model.json").write_text('{"tokens": ["second"]}')
    server = await start_server()
    answers = [
        await collect(server.infer("mock", generation(max_tokens=1), version=version))
        for version in (1, 2, -1)
    ]

    assert [a[0].item("text_output") for a in answers] == [b"first", b"second", b"second"]


@pytest.mark.parametrize("name", ["../models/mock", "/models/mock", "mock/..", "", "a\0b"])
async def test_name_outside_the_repository(server, name):
    """A name that is a path outside the repository is rejected before it reaches the core."""
    with pytest.raises(errors.InvalidRequest, match="model name"):
        await server.load_model(name)


async def test_file_outside_the_model_folder(server):
    """A file in the load cannot be written outside the model's folder."""
    with pytest.raises(errors.GatewayError):
        await server.load_model(
            "made", config='{"backend": "inprocess"}', model_files={"../x": b""}
        )


async def test_poll_finds_a_new_model(repository, start_server):
    """In poll mode a new model serves automatically."""
    mock_models.write(repository, "mock")
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    mock_models.write(repository, "late")
    await until(lambda: server.model_is_ready("late"))

    assert await count(generate(server, 2, model="late")) == 2


async def test_poll_drops_a_removed_model(repository, start_server):
    """In poll mode a model is unloaded if its folder disappears."""
    mock_models.write(repository, "mock")
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    shutil.rmtree(repository / "mock")

    await until(lambda: not server.model_facts("mock"))
    await server.refresh()
    assert not server.model_is_ready("mock")


async def test_poll_continues_after_a_broken_model(repository, start_server):
    """A broken new model does not stop the polling."""
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    mock_models.write(repository, "broken", config=BROKEN_CONFIG)
    await asyncio.sleep(0.15)
    mock_models.write(repository, "late")

    await until(lambda: server.model_is_ready("late"))
    assert await count(generate(server, 2, model="late")) == 2


async def test_poll_continues_after_an_unreadable_repository(repository, start_server):
    """A repository that is temporarily unreadable (a remote one, say) does not stop the polling."""
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    repository.rename(repository.with_name("away"))
    await asyncio.sleep(0.15)
    repository.with_name("away").rename(repository)
    mock_models.write(repository, "late")

    await until(lambda: server.model_is_ready("late"))
    assert await count(generate(server, 2, model="late")) == 2


async def test_poll_continues_after_an_unexpected_error(
    repository, start_server, monkeypatch, caplog
):
    """An error that no code expects is logged, and the polling restarts."""
    monkeypatch.setattr(background_tasks, "RESTART_DELAY_S", 0.0)
    server = await start_server(model_control_mode="poll", repository_poll_s=0.05)
    poll = server._control.poll

    async def fail_once():
        monkeypatch.setattr(server._control, "poll", poll)
        raise RuntimeError("no threads")

    monkeypatch.setattr(server._control, "poll", fail_once)
    # A poll that has begun before would find the model too, so it comes after the error.
    await until(lambda: "background task 'poll the model repository' failed" in caplog.text)
    mock_models.write(repository, "late")

    await until(lambda: server.model_is_ready("late"))


BROKEN = {
    "config": ({"config": BROKEN_CONFIG}, "config.pbtxt"),
    "engine": ({"config": with_engine("nope")}, "config.pbtxt: parameters: engine: 'nope'"),
    "module": ({"config": with_engine("absent_module:Engine")}, "absent_module"),
    "no engine class": ({"config": with_engine("json:JSONDecoder")}, "config.pbtxt.*JSONDecoder"),
    "batching": ({"config": BATCHES}, "config.pbtxt: max_batch_size"),
    "backend": ({"config": 'backend: "absent"'}, "absent"),
    "not UTF-8": ({"config": 'backend: "absent \\377"'}, "absent \N{REPLACEMENT CHARACTER}"),
    "load": ({"fail_at_load": "no weights in /there"}, "no weights in /there"),
    "setting": ({"temperature": 1}, "model.json.*temperature"),
}


@pytest.mark.parametrize(("arguments", "reason"), BROKEN.values(), ids=BROKEN.keys())
async def test_broken_model_does_not_affect_others(repository, start_server, arguments, reason):
    """The index has the reason in one line; other models serve."""
    mock_models.write(repository, "broken", **arguments)
    mock_models.write(repository, "good")
    server = await start_server()

    assert re.search(reason, entry(server, "broken").reason)
    assert await count(generate(server, 2, model="good")) == 2


async def test_invalid_model_json(repository, start_server):
    """The error names the path and the position."""
    version = mock_models.write(repository, "broken")
    (version / "model.json").write_text('{"tokens": [}')
    server = await start_server()

    assert f"{version / 'model.json'}: not JSON: " in entry(server, "broken").reason


async def test_model_json_that_is_not_an_object(repository, start_server):
    """A model.json that is not an object is rejected with its path."""
    version = mock_models.write(repository, "broken")
    (version / "model.json").write_text("[]")
    server = await start_server()

    assert entry(server, "broken").reason.endswith(f"{version / 'model.json'}: not a JSON object")


@pytest.mark.slow
async def test_rapid_loads_and_unloads(repository, start_server):
    """Loads and unloads of models and of an ensemble's composing models may come in any order and
    pace.
    """
    names = ["one", "two", "part"]
    for name in names:
        mock_models.write(repository, name)
    mock_models.write_ensemble(repository, "whole")
    server = await start_server()

    async def come_and_go(name):
        for _ in range(40):
            await asyncio.gather(
                server.load_model(name), server.unload_model(name), return_exceptions=True
            )

    async with asyncio.timeout(300):
        await asyncio.gather(*map(come_and_go, [*names, "whole"]))
    await server.load_model("one")

    assert await text(server, "one")
