"""Metrics that backends report through Triton's metrics API, as `/metrics` exposes them."""

import httpx
import openai
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families
from prometheus_client.samples import Sample

from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ENGINE = {"model": "tensorrt_llm", "version": "1"}

# Family -> its label and values (custom_metrics_reporter.cc of NVIDIA/TensorRT-LLM)
NVIDIA = {
    "nv_trt_llm_request_metrics": "request_type active max scheduled context waiting",
    "nv_trt_llm_runtime_memory_metrics": "memory_type cpu gpu pinned",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type max free used tokens_per reused "
    "fraction",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric total_context_tokens "
    "generation_requests micro_batch_id paused_requests",
    "nv_trt_llm_general_metrics": "general_type timestamp iteration_counter",
    "nv_trt_llm_disaggregated_serving_metrics": "disaggregated_serving_type kv_cache_transfer_ms "
    "request_count",
}


@pytest.fixture
def samples(standins_gateway: GatewayProcess) -> dict[str, list[Sample]]:
    """Family -> its samples after an answer of TensorRT-LLM's pipeline; the same in both formats
    that scrapers request.
    """
    url = standins_gateway.url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        client.completions.create(model="ensemble", prompt="Triton is", max_tokens=4)
    plain = httpx.get(f"{url}/metrics").text
    strict = httpx.get(f"{url}/metrics", headers={"accept": OPENMETRICS}).text
    told = {family.name: family.samples for family in plain_families(plain)}
    again = {family.name: family.samples for family in openmetrics_families(strict)}
    assert {name: len(each) for name, each in told.items() if name.startswith("nv_trt")} == {
        name: len(each) for name, each in again.items() if name.startswith("nv_trt")
    }
    return told


def test_series_of_tensorrt_llm(samples: dict[str, list[Sample]]) -> None:
    """Each family has exactly the labels and values of NVIDIA's backend."""
    for family, words in NVIDIA.items():
        label, *values = words.split()
        expected = {frozenset({**ENGINE, label: value}.items()) for value in values}
        assert {frozenset(sample.labels.items()) for sample in samples[family]} == expected


def test_values_of_tensorrt_llm(samples: dict[str, list[Sample]]) -> None:
    """A gauge has the value that the engine set, a histogram its observations."""
    blocks = {
        sample.labels["kv_cache_block_type"]: sample.value
        for sample in samples["nv_trt_llm_kv_cache_block_metrics"]
    }
    prompts = {
        sample.labels["le"]: sample.value
        for sample in samples["nv_llm_input_token_len"]
        if sample.name.endswith("_bucket")
    }

    assert blocks["tokens_per"] == 64
    assert blocks["used"] + blocks["free"] == blocks["max"]
    assert blocks["used"] > 0
    assert list(prompts) == ["10", "50", "100", "500", "1000", "+Inf"]
    assert prompts["+Inf"] >= prompts["10"] >= 1
