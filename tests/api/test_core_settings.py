"""Settings of Triton's core, as users write them, change what the core does."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.core.triton import python_models
from tests.gateway_process import GatewayProcess

DOUBLE = "def answer(given):\n    return given * 2"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("core_settings")
    repository = folder / "repository"
    python_models.write(repository, "double", answer=DOUBLE, inputs={"IN": "INT32"})
    with (repository / "double" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    settings = (
        "--cache-config=local:size=1048576",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.75:0.01",
        "--backend-config=default-max-batch-size=7",
    )
    with GatewayProcess(repository, folder / "log", *settings) as started:
        started.wait_until_ready()
        yield started


def test_equal_requests_use_the_response_cache(gateway: GatewayProcess) -> None:
    """The second of two equal requests is a hit of the cache that the wheel contains."""
    given = {"name": "IN", "datatype": "INT32", "shape": [2], "data": [20, 21]}
    url = f"{gateway.url}/v2/models/double/infer"
    answers = [httpx.post(url, json={"inputs": [given]}, timeout=60).json() for _ in range(2)]

    assert [answer["outputs"][0]["data"] for answer in answers] == [[40, 42]] * 2
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    for name in ("hits", "misses"):
        assert f'nv_cache_num_{name}_per_model{{model="double",version="1"}} 1' in metrics


def test_settings_without_a_name_are_global(gateway: GatewayProcess) -> None:
    """Summaries have the quantiles of the setting, in text that contains colons and commas."""
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text

    assert re.search(
        r'^nv_inference_\w+{model="double",version="1",quantile="0.75"}', metrics, re.M
    )
