"""tritonclient and perf_analyzer, in their own environment, compared with the core."""

import asyncio
import base64
import csv
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from openai_frontend.triton import Server
from tests.api.kserve.conftest import ALL, KServe, running, write_models
from tests.clients.environments import Environment
from tests.core.triton.generation_inputs import collect

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kserve(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KServe]:
    repository = tmp_path_factory.mktemp("tritonclient")
    write_models(repository)
    async with running(repository, enable_model_management=True, allow_model_override=True) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results(kserve: KServe) -> Any:
    """The results of the client's calls."""
    url = kserve.url.removeprefix("http://")
    return await asyncio.to_thread(Environment("genai-perf").ask, "drive_tritonclient", url)


async def through_the_core(server: Server, name: str, data: bytes) -> bytes:
    (response,) = await collect(server.infer("all", {name: (name, (3,), data)}))
    return bytes(memoryview(response.tensor(f"{name}_echo")))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["binary", "unnamed", "json"])
async def test_infer(kserve, results, form):
    """Tensors of every datatype equal those from the core's own interface."""
    for name, encoded in results[form].items():
        data = base64.b64decode(encoded)
        assert await through_the_core(kserve.server, name, data) == data
        assert encoded == results["binary"][name]
    assert set(results["binary"]) == set(ALL)


async def test_inference_options(results):
    """Asynchronous calls, ids, batches, classification and request options."""
    assert results["later"] == results["aio"] == results["binary"]["INT32"]
    assert (results["id"], results["batched"]) == ("7", ["2:1", "4:0"])


async def test_generate(results):
    """A text is returned as JSON."""
    assert results["generated"]["text_output"] == "Hello"


async def test_queries(kserve, results):
    """The client's health, metadata, config, statistics and log settings equal the core's."""
    assert (results["live"], results["ready"], results["model_ready"]) == (
        True,
        True,
        [True, False],
    )
    assert results["metadata"] == kserve.server.model_metadata("all")
    assert results["config"] == kserve.server.model_config("all")
    assert results["statistics"]["model_stats"][0]["inference_stats"]["success"]["count"] >= 3
    assert "binary_tensor_data" in results["server"]["extensions"]
    assert results["log"]["log_warning"] is True


async def test_repository_control(results):
    """The index, unload, load, and load with a config and a file."""
    assert {"name": "all", "version": "1", "state": "READY", "reason": ""} in results["index"]
    assert results["managed"] == [False, "SENT", "IN"]


@pytest.mark.parametrize(
    ("call", "status"),
    [("nobody", 404), ("datatype", 400), ("version", 404), ("shared_memory", 501), ("load", 404)],
)
async def test_failures(results, call, status):
    """The client raises an exception with the status and a message."""
    assert results["failures"][call].startswith(f"{status} ")
    assert len(results["failures"][call]) > 10


async def test_perf_analyzer(kserve, tmp_path):
    """A run against a batching model succeeds without a failed request."""
    url = kserve.url.removeprefix("http://")
    run = ["perf_analyzer", "-m", "batched", "-u", url, "-i", "http", "--service-kind=triton",
           "-b", "2", "--concurrency-range=2", "--max-trials=3", "--stability-percentage=999",
           "--measurement-mode=count_windows", "--measurement-request-count=50",
           "-f", "report.csv"]  # fmt: skip

    await asyncio.to_thread(Environment("genai-perf").run, run, tmp_path)

    [row] = csv.DictReader((tmp_path / "report.csv").read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    failed = kserve.server.model_statistics("batched")["model_stats"][0]["inference_stats"]["fail"]
    assert failed["count"] == 0
