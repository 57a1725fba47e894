"""The newest tritonclient over HTTP and gRPC: one table of calls, with equal results."""

import asyncio
import csv
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.api.kserve.conftest import KServe, running, write_models
from tests.api.kserve.grpc_client import rpc_server
from tests.clients.environments import Environment
from tests.clients.environments.profilers import COMMON, documented, exported

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

ALLOWED: dict[str, Any] = {
    "enable_model_management": True,
    "allow_model_override": True,
    "triton_option": {"allow-client-shm": "true"},
}

# What each row of the program returns, over both protocols
EXPECTED = {
    "simple": [1.5, -2.0, 0.25],
    "strings": ["a", "é", ""],
    "half": [-1.5, 0.0, 65504.0],
    "classes": [["2:1", "1:0", "4:0", "3:1"], [2, 2]],
    "parameters": {"text": "x", "number": 7, "truth": True},
    "asynchronous": [[1.5, -2.0, 0.25]] * 4,
    "health": [True, True, True, False, False],
    "control": [False, True, "READY"],
    "override": "NEW",
    "statistics": ["one", True],
    "sequences": [1, 1, 3, 3, 6, 6],
    "shared_memory": [[1.5, -2.0, 0.25], [3], [12, 12]],
    "log_settings": [1, 0],
    "compressed": [1.5, -2.0, 0.25],
    "by_asyncio": [[1.5, -2.0, 0.25], True],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kserve(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KServe]:
    repository = tmp_path_factory.mktemp("protocols")
    write_models(repository)
    async with running(repository, **ALLOWED) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(kserve: KServe) -> AsyncIterator[str]:
    """Of gRPC."""
    async with rpc_server(kserve.app, triton_option={"allow-client-shm": "true"}) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results(kserve: KServe, address: str) -> Any:
    program, http = "drive_both_protocols", kserve.url.removeprefix("http://")
    return await asyncio.to_thread(Environment("tritonclient").ask, program, http, address)


@pytest.mark.parametrize("row", EXPECTED)
async def test_rows(results, row):
    """HTTP and gRPC return what is expected."""
    assert results[row] == [EXPECTED[row]] * 2


async def test_documents_are_equal(results):
    """Metadata, config and extensions do not depend on the protocol."""
    over_http, over_grpc = results["metadata"]

    assert over_http == over_grpc
    assert over_http[0] == [["IN", "FP32", [-1]]]


async def test_errors_are_equal(results):
    """A mistake has one message, whatever the protocol."""
    over_http, over_grpc = results["errors"]

    assert over_http == over_grpc
    assert "no error" not in over_http
    assert len(set(over_http)) == len(over_http)


async def test_decoupled_stream(results):
    """Each response carries the request's id; the stream outlives a failed request."""
    responses, error = results["decoupled"]

    assert responses == [["5", 2], ["5", 2], ["5", 0]]
    assert "absent" in error


WINDOWS = ("--measurement-mode=count_windows", "--measurement-request-count=20")


@pytest.mark.parametrize("streaming", [False, True])
async def test_perf_analyzer_over_grpc(kserve, address, tmp_path, streaming):
    """Calls and streams of perf_analyzer succeed without a failed request."""
    run = ["perf_analyzer", "-m", "batched", "-u", address, "-i", "grpc", "--service-kind=triton",
           "-b", "2", "--concurrency-range=2", "--max-trials=3", "--stability-percentage=999",
           *WINDOWS, "-f", "report.csv", *(["--streaming"] if streaming else [])]  # fmt: skip

    await asyncio.to_thread(Environment("genai-perf").run, run, tmp_path)

    [row] = csv.DictReader((tmp_path / "report.csv").read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    failed = kserve.server.model_statistics("batched")["model_stats"][0]["inference_stats"]["fail"]
    assert failed["count"] == 0


async def test_genai_perf_in_its_mode_for_triton(address, tmp_path):
    """genai-perf's endpoint type `kserve` streams tokens over gRPC and counts each."""
    options = ["slow" if word == "demo" else word for word in documented("genai-perf", "kserve")]
    run = ["genai-perf", "profile", "--endpoint-type=kserve", *options, f"--url={address}",
           *COMMON, f"--artifact-dir={tmp_path}", "--", *WINDOWS]  # fmt: skip

    await asyncio.to_thread(Environment("genai-perf").run, run, tmp_path, HF_HUB_OFFLINE="1")

    export = exported(tmp_path, "profile_export_genai_perf.json")
    assert export["request_count"]["avg"] > 0
    assert export["inter_token_latency"]["avg"] > 0
