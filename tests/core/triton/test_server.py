import asyncio
import tempfile
import time
from dataclasses import replace

import psutil
import pytest
from prometheus_client import parser

from openai_frontend import errors
from openai_frontend.triton import ModelIndexEntry, Options, Server
from tests import mock_models
from tests.core.triton import python_models
from tests.core.triton.generation_inputs import collect, count, generate


def samples(text: str, name: str) -> dict[str, float]:
    """The values of one metric by model."""
    return {
        sample.labels["model"]: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


async def test_start_is_quick(repository, start_server):
    """A core with a model starts in this process within two seconds, unless others hold the CPU."""
    mock_models.write(repository, "mock")
    took_s = []
    for _ in range(3):
        started = time.monotonic()
        await (await start_server()).stop()
        took_s.append(time.monotonic() - started)

    assert min(took_s) < 2


@pytest.mark.slow
async def test_phases_of_a_start(repository, tmp_path):
    """The models that still load, and those whose stub starts. What the core logged for that is not
    passed on.
    """
    log, seen = tmp_path / "log", set[tuple[str, str]]()
    python_models.write(repository, "echo")
    server = Server(
        Options(model_repositories=[repository], triton_option={"log-file": [str(log)]})
    )
    starting = asyncio.create_task(server.start())
    while not starting.done():
        seen.update(server.load_phases().items())
        await asyncio.sleep(0.01)
    await starting
    after = server.load_phases()
    await server.stop()

    assert {("echo", ""), ("echo", "starting its Python stub")} <= seen
    assert not after
    assert not log.read_text()


async def test_live_and_ready(server):
    """A started core is live and ready."""
    assert (server.is_live(), server.is_ready()) == (True, True)


async def test_stopped_server_is_neither_live_nor_ready(server):
    """The queries raise nothing."""
    await server.stop()

    assert (server.is_live(), server.is_ready()) == (False, False)


async def test_stop_twice(server):
    """A second stop does nothing."""
    await server.stop()

    assert await server.stop() is None


async def test_stop_without_a_start(repository):
    """A server that never started can be stopped."""
    assert await Server(Options(model_repositories=[repository])).stop() is None


async def test_queries_to_a_stopped_server(server):
    """They are rejected as unavailable."""
    await server.stop()

    with pytest.raises(errors.ModelUnavailable, match="the server is not running"):
        server.model_index()


async def test_inference_on_a_stopped_server(server):
    """A request to a stopped server is rejected as unavailable."""
    await server.stop()

    with pytest.raises(errors.ModelUnavailable, match="the server is not running"):
        generate(server, 1)


async def test_start_stop_start(server):
    """A stopped server can start again in the same process."""
    await server.stop()
    await server.start()

    assert await count(generate(server, 3)) == 3


async def test_missing_repository(tmp_path):
    """A core without its repository does not start, and the error names the path."""
    absent = tmp_path / "absent"

    with pytest.raises(errors.ModelUnavailable, match=f"failed to stat file {absent}$"):
        await Server(Options(model_repositories=[absent])).start()


async def test_start_after_a_failed_start(repository):
    """A failed start leaves nothing attached, so the next one succeeds."""
    mock_models.write(repository, "mock")
    options = Options(model_repositories=[repository], model_control_mode="explicit")
    with pytest.raises(errors.GatewayError):
        await Server(replace(options, cache_config={"absent": "{}"})).start()
    server = Server(options)
    await server.start()

    assert await count(generate(server, 2)) == 2
    await server.stop()


async def test_second_core_of_a_process(server, repository, tmp_path, monkeypatch):
    """It is refused and creates nothing, also if it is the same server; the first one serves."""
    folders = tmp_path / "temporary"
    folders.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    tasks, threads = asyncio.all_tasks(), psutil.Process().num_threads()

    for second in (Server(Options(model_repositories=[repository])), server):
        with pytest.raises(RuntimeError, match="another Triton core of this process has not stop"):
            await second.start()

    assert asyncio.all_tasks() == tasks
    assert psutil.Process().num_threads() <= threads
    assert not list(folders.iterdir())
    assert await count(generate(server, 3)) == 3


async def test_metadata(server):
    """The core's metadata has the name from the options, and its version."""
    metadata = server.metadata()

    assert (metadata["name"], metadata["version"][0]) == ("openai-frontend", "2")


async def test_model_index(server):
    """The index has an entry for each version, with its state."""
    assert server.model_index() == [ModelIndexEntry("mock", 1, "READY", "")]


async def test_model_metadata(server):
    """A model's metadata names its tensors with their datatypes."""
    outputs = {tensor["name"]: tensor for tensor in server.model_metadata("mock")["outputs"]}

    assert outputs["token_ids"] == {"name": "token_ids", "datatype": "INT32", "shape": [-1]}


async def test_model_config(server):
    """A model's config is the one that its backend completed."""
    config = server.model_config("mock")

    assert (config["backend"], len(config["input"]) > 0) == ("inprocess", True)


async def test_model_is_decoupled(server):
    """In-process models may send any number of responses."""
    assert server.model_is_decoupled("mock")


async def test_model_facts(repository, start_server):
    """The facts that an engine reported at its load."""
    mock_models.write(repository, "mock", max_model_len=77)
    server = await start_server()

    assert server.model_facts("mock").max_model_len == 77


async def test_facts_of_an_unknown_model(server):
    """A model without an in-process engine has no facts."""
    assert server.model_facts("absent") is None


async def test_config_of_an_unknown_model(server):
    """A query for an unknown model raises an error with its name."""
    with pytest.raises(errors.ModelNotFound, match="absent"):
        server.model_config("absent")


async def test_unknown_model_is_not_ready(server):
    """A readiness query for an unknown model returns False."""
    assert not server.model_is_ready("absent")


async def test_unknown_version_is_not_ready(server):
    """A version that is not loaded is not ready."""
    assert (server.model_is_ready("mock", 1), server.model_is_ready("mock", 2)) == (True, False)


async def test_statistics_count_successes(server):
    """A successful request counts once, however many responses it had."""
    await collect(generate(server, 5))
    (statistics,) = server.model_statistics("mock")["model_stats"]

    assert statistics["inference_stats"]["success"]["count"] == 1


async def test_statistics_count_failures(repository, start_server):
    """A request that its engine failed counts as one failure."""
    mock_models.write(repository, "mock", fail_after_tokens=2)
    server = await start_server()
    with pytest.raises(errors.InferenceFailed):
        await collect(generate(server, 5))
    (statistics,) = server.model_statistics("mock")["model_stats"]

    assert statistics["inference_stats"]["fail"]["count"] == 1


async def test_metrics_count_successes(repository, start_server):
    """The metrics are Prometheus text, and count each model's successes."""
    for name in ("one", "other"):
        mock_models.write(repository, name)
    server = await start_server()
    for model in ("one", "other", "other"):
        await collect(generate(server, 5, model=model))

    text = await asyncio.to_thread(server.metrics)
    counted = samples(text, "nv_inference_request_success_total")
    counted = counted or samples(text, "nv_inference_request_success")
    assert counted == {"one": 1, "other": 2}


async def test_dead_engine_is_not_ready(repository, start_server):
    """If an engine has died, neither its model nor the server is ready, and the reason is
    available.
    """
    mock_models.write(repository, "mock", die_after_tokens=1)
    server = await start_server()
    with pytest.raises(errors.ModelUnavailable):
        await collect(generate(server, 5))

    assert (server.is_ready(), server.model_is_ready("mock")) == (False, False)
    assert server.model_failure("mock") == "the mock engine died, as configured"
