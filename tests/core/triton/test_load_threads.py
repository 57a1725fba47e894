"""Models are loaded and unloaded on Triton's threads while the event loop serves."""

import asyncio
import sys

import pytest

from openai_frontend import errors
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.engines.failing_engines import FailsInWarmUp, LoadsWhenTold
from tests.core.engines.held_engine import HeldEngine
from tests.core.triton.generation_inputs import collect, count, generate, generation
from tests.core.triton.waiting import until

FAILURES = {
    "FailsInLoad": "OSError: the disk is gone",
    "NamesNoContext": "ModelFacts: max_model_len is missing",
    "DescribesImagesInADict": "ModelFacts: images must be ImageSupport or None, not dict",
    "ExitsInLoad": "leaving",
    "UnprintableInLoad": "Unprintable",
    "FailsInWarmUp": "RuntimeError: cold",
}


def write(repository, name, engine):
    mock_models.write(repository, name, config=failing_engines.config(engine))


@pytest.mark.parametrize(("engine", "reason"), FAILURES.items())
async def test_exception_in_load(repository, start_server, engine, reason):
    """The exception becomes the model's reason; other models serve."""
    mock_models.write(repository, "good")
    write(repository, "bad", engine)
    server = await start_server(startup_models=["good"])

    with pytest.raises(errors.GatewayError, match=reason):
        await server.load_model("bad")
    assert await count(generate(server, 2, model="good")) == 2


@pytest.mark.parametrize(
    ("engine", "traceback"),
    [("FailsInLoad", False), ("LacksItsModel", False), ("FailsInWarmUp", True)],
)
async def test_unavailable_model_leaves_no_traceback(
    repository, start_server, caplog, engine, traceback
):
    """An expected error logs one line, an unexpected one its traceback."""
    write(repository, "bad", engine)
    server = await start_server()

    with pytest.raises(errors.GatewayError):
        await server.load_model("bad")
    assert any(record.exc_info for record in caplog.records) == traceback


async def test_without_vllm_a_load_names_the_extra(repository, start_server, caplog, monkeypatch):
    """A model of the engine `vllm` fails with one line, without a traceback in the log."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    mock_models.write(repository, "bad", config='backend: "inprocess"\n')
    server = await start_server()

    with pytest.raises(errors.GatewayError, match=r"vLLM is not installed. Install the extra"):
        await server.load_model("bad")
    assert not any(record.exc_info for record in caplog.records)


async def test_engine_that_fails_in_its_warm_up_is_released(repository, start_server):
    """An engine whose warm-up fails is unloaded again."""
    FailsInWarmUp.unloaded = False
    write(repository, "bad", "FailsInWarmUp")
    await start_server()

    assert FailsInWarmUp.unloaded


async def test_exception_in_unload(repository, start_server):
    """An engine that raises during its unload is removed nevertheless."""
    write(repository, "bad", "FailsInUnload")
    server = await start_server()
    async with asyncio.timeout(30):
        await server.unload_model("bad")

    assert (server.model_is_ready("bad"), server.is_live()) == (False, True)


async def test_exception_in_unload_at_the_stop(repository, start_server):
    """The exception does not block a stop."""
    write(repository, "bad", "FailsInUnload")
    server = await start_server()
    async with asyncio.timeout(30):
        await server.stop()

    assert not server.is_live()


async def test_loop_is_free_while_a_model_loads(repository, start_server):
    """A slow load does not block other models."""
    LoadsWhenTold.begun.clear()
    LoadsWhenTold.may_end.clear()
    mock_models.write(repository, "mock")
    write(repository, "slow", "LoadsWhenTold")
    server = await start_server(startup_models=["mock"])
    loading = asyncio.create_task(server.load_model("slow"))
    try:
        await until(LoadsWhenTold.begun.is_set)
        served = await count(generate(server, 20))
        assert (served, loading.done()) == (20, False)
    finally:
        LoadsWhenTold.may_end.set()
    await loading


async def test_reload_while_streams_run(repository, start_server):
    """Running streams end on the old engine; later requests use the new one."""
    # It hangs after a token, so that its streams run for as long as the load takes.
    mock_models.write(repository, "mock", tokens=["old"], hang_after_tokens=1)
    server = await start_server()
    old = HeldEngine("mock")
    streams = [generate(server, 100) for _ in range(16)]
    running = [asyncio.create_task(collect(stream)) for stream in streams]
    await old.hangs(streams=16)
    mock_models.write(repository, "mock", tokens=["new"])
    await server.load_model("mock")
    later = await collect(generate(server, 3))
    still_running = sum(not task.done() for task in running)
    old.release()

    assert {response.item("text_output") for response in later} == {b"new"}
    for responses in await asyncio.gather(*running):
        assert [response.item("text_output") for response in responses] == [b"old"] * 100
    assert still_running == 16


@pytest.mark.slow
async def test_loads_and_unloads_under_traffic(repository, start_server):
    """A model is loaded and unloaded twenty times while another one serves."""
    mock_models.write(repository, "mock")
    write(repository, "guest", "SlowToLoad")
    server = await start_server(startup_models=["mock"])
    done = asyncio.Event()
    served = 0

    async def traffic():
        nonlocal served
        while not done.is_set():
            served += await count(generate(server, 20))

    clients = [asyncio.create_task(traffic()) for _ in range(4)]
    async with asyncio.timeout(120):
        for _ in range(20):
            await server.load_model("guest")
            await collect(server.infer("guest", generation()))
            await server.unload_model("guest")
        done.set()
        await asyncio.gather(*clients)
    assert served > 400


async def test_queries_during_loads(repository, start_server):
    """All queries to the core return while models load: no deadlock between threads."""
    mock_models.write(repository, "mock")
    write(repository, "guest", "SlowToLoad")
    server = await start_server()
    done = False

    async def ask():
        while not done:
            server.is_ready()
            await asyncio.to_thread(server.metrics)
            server.model_statistics("mock")
            await count(generate(server, 3))

    asking = asyncio.create_task(ask())
    async with asyncio.timeout(120):
        for _ in range(5):
            await server.unload_model("guest")
            await server.load_model("guest")
        done = True
        assert await asking is None


async def test_requests_during_loads_and_unloads(repository, start_server):
    """A request to a model that is being unloaded is served or rejected, and never hangs."""
    write(repository, "guest", "SlowToLoad")
    server = await start_server()
    outcomes = set()
    done = False

    async def ask():
        while not done:
            try:
                responses = await collect(server.infer("guest", generation()))
                outcomes.add(responses[-1].item("text_output"))
            except errors.GatewayError as error:
                outcomes.add(type(error))
            await asyncio.sleep(0)

    clients = [asyncio.create_task(ask()) for _ in range(4)]
    async with asyncio.timeout(120):
        for _ in range(5):
            await server.unload_model("guest")
            await server.load_model("guest")
        done = True
        await asyncio.gather(*clients)
    assert outcomes <= {
        b"fine",
        errors.ModelNotFound,
        errors.ModelUnavailable,
        errors.InvalidRequest,
    }
    assert b"fine" in outcomes


ENSEMBLE = """
platform: "ensemble"
input { name: "prompt" data_type: TYPE_STRING dims: [1] }
output { name: "answer" data_type: TYPE_STRING dims: [1] }
ensemble_scheduling {
  step {
    model_name: "mock"
    model_version: -1
    input_map { key: "text_input" value: "prompt" }
    output_map { key: "text_output" value: "answer" }
  }
}
"""


async def test_ensemble_of_an_in_process_model(repository, start_server):
    """In-process models may be steps of an ensemble, also while models are loaded and unloaded."""
    mock_models.write(repository, "mock", answer_tokens=1)
    mock_models.write(repository, "ensemble", config=ENSEMBLE)
    write(repository, "guest", "SlowToLoad")
    server = await start_server()
    inputs = {"prompt": generation()["text_input"]}
    answers = []

    async def ask():
        for _ in range(40):
            (response,) = await collect(server.infer("ensemble", inputs))
            answers.append(response.item("answer"))

    asking = asyncio.create_task(ask())
    async with asyncio.timeout(120):
        while not asking.done():
            await server.unload_model("guest")
            await server.load_model("guest")
        await asking
    assert answers == [b" token"] * 40


async def test_stop_unloads_ensembles_first(repository, start_server, tmp_path):
    """The core logs an error for an ensemble that loses its composing model."""
    mock_models.write(repository, "a")
    mock_models.write(repository, "mock")
    mock_models.write(repository, "z")
    mock_models.write(repository, "ensemble", config=ENSEMBLE)
    log = tmp_path / "core.log"
    server = await start_server(triton_option={"log-file": [str(log)]})
    await server.stop()

    assert "ambiguous" not in log.read_text()
