import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from openai_frontend.generation import CompletionDelta, TokenCounts, UsageCounter
from openai_frontend.metrics import exposition
from openai_frontend.metrics.gateway import GatewayMetrics, GenerationLabels
from openai_frontend.metrics.vllm import ALL, VLLMModel, families, vllm_gauges

DEMO = VLLMModel(
    model="demo",
    version="1",
    gauges=vllm_gauges(
        {"running": 3, "waiting": 1, "vllm:kv_cache_usage_perc": 0.5, "vllm:num_preemptions": 2}
    ),
    samples=[
        ("openai_frontend_engine_capability", {"capability": "step_loop"}, 0),
        ("vllm:num_requests_waiting_by_reason", {"reason": "capacity"}, 1),
        ("vllm:inter_token_latency_seconds_bucket", {"le": "0.01"}, 2),
        ("vllm:inter_token_latency_seconds_bucket", {"le": "+Inf"}, 3),
        ("vllm:inter_token_latency_seconds_count", {}, 3),
        ("vllm:inter_token_latency_seconds_sum", {}, 0.05),
        ("vllm:iteration_tokens_total_bucket", {"le": "+Inf"}, 1),
        ("vllm:iteration_tokens_total_count", {}, 1),
        ("vllm:iteration_tokens_total_sum", {}, 7),
        ("vllm:mm_cache_queries_total", {}, 9),
        ("vllm:mm_cache_hits_total", {}, 4),
        ("openai_frontend_audio_seconds_total", {"direction": "input"}, 2.5),
        *(
            (
                f"openai_frontend_media_stage_seconds_{part}",
                {"kind": "image", "stage": "decode"} | ({"le": "+Inf"} if part == "bucket" else {}),
                5,
            )
            for part in ("bucket", "count", "sum")
        ),
        ("vllm:nixl_num_failed_transfers_total", {}, 0),
        ("vllm:nixl_num_failed_notifications_total", {}, 0),
        ("vllm:nixl_num_kv_expired_reqs_total", {}, 1),
        ("vllm:nixl_num_notifications_after_expiry_total", {}, 0),
        *(
            (f"vllm:nixl_{name}_{part}", {"le": "+Inf"} if part == "bucket" else {}, 4)
            for name in ("xfer_time_seconds", "bytes_transferred")
            for part in ("bucket", "count", "sum")
        ),
        (
            "vllm:lora_requests_info",
            {"max_lora": "2", "running_lora_adapters": "a,b", "waiting_lora_adapters": ""},
            1.5e9,
        ),
        (
            "vllm:cache_config_info",
            {
                "block_size": "16",
                "cache_dtype": "auto",
                "enable_prefix_caching": "True",
                "gpu_memory_utilization": "0.9",
                "num_gpu_blocks": "512",
            },
            1,
        ),
    ],
)

# Labels besides the model's
OWN_LABELS = {"le", "finished_reason", "source"} | {
    label for _, labels, _ in DEMO.samples for label in labels
}

# What NVIDIA's vLLM backend reports (triton-inference-server/vllm_backend, src/utils/metrics.py)
HISTOGRAM_BOUNDS = {
    "vllm:time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 "
    "1.0 2.5 5.0 7.5 10.0 +Inf",
    "vllm:time_per_output_token_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 "
    "2.5 +Inf",
    "vllm:request_params_n": "1.0 2.0 5.0 10.0 20.0 +Inf",
    "vllm:e2e_request_latency_seconds": "1.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 +Inf",
}


@pytest.fixture
def metrics():
    metrics = GatewayMetrics()
    for labels in (("demo", "1"), ("demo", "1", "adapter"), ("demo", "2"), ("other", "1")):
        answer = metrics.generations_of(GenerationLabels(*labels)).begin(UsageCounter())
        counts = TokenCounts(prompt_tokens=7, completion_tokens=3, cached_tokens=4)
        answer.add([CompletionDelta("x", finish_reason="stop", counts=counts)])
        answer.end()
    return metrics


@pytest.fixture
def values(metrics):
    """(Sample's name, values of labels besides the model's) -> value."""
    read = {}
    for family in families(metrics.registry, [DEMO]):
        for sample in family.samples:
            labels = dict(sample.labels)
            own = [labels.pop(name) for name in sample.labels if name in OWN_LABELS]
            assert labels == {"model": "demo", "version": "1"}
            read[sample.name, *(tuple(own) or (None,))] = sample.value
    return read


def test_values_are_sums_over_lora_adapters(values):
    """Other versions and models are not included."""
    assert values["vllm:prompt_tokens_total", None] == 2 * 7
    assert values["vllm:generation_tokens_total", None] == 2 * 3
    assert values["vllm:prefix_cache_hits_total", None] == 2 * 4
    assert values["vllm:prefix_cache_queries_total", None] == 2 * 7
    assert values["vllm:prompt_tokens_cached_total", None] == 2 * 4
    assert values["vllm:request_success_total", "stop"] == 2
    assert values["vllm:request_success_total", "abort"] == 0
    assert values["vllm:request_params_n_bucket", "1.0"] == 2
    assert values["vllm:prompt_tokens_by_source_total", "local_compute"] == 2 * (7 - 4)
    assert values["vllm:prompt_tokens_by_source_total", "local_cache_hit"] == 2 * 4


@pytest.mark.parametrize("name", HISTOGRAM_BOUNDS)
def test_bounds_are_those_of_nvidias_backend(values, name):
    """Its dashboards can add both up."""
    bounds = [own[0] for sample, *own in values if sample == f"{name}_bucket"]

    assert HISTOGRAM_BOUNDS[name].split() == bounds
    assert values[f"{name}_bucket", "+Inf"] == values[f"{name}_count", None] == 2


def test_gauges_of_the_engine(values):
    """They are reported under vLLM's names."""
    assert values["vllm:num_requests_running", None] == 3
    assert values["vllm:num_requests_waiting", None] == 1
    assert values["vllm:kv_cache_usage_perc", None] == 0.5
    assert values["vllm:num_preemptions_total", None] == 2


def test_samples_with_labels_of_their_own(values):
    """The engine's labels are added to the model's."""
    assert values["openai_frontend_engine_capability", "step_loop"] == 0
    assert values["vllm:num_requests_waiting_by_reason", "capacity"] == 1
    assert values["vllm:inter_token_latency_seconds_bucket", "0.01"] == 2
    assert values["vllm:inter_token_latency_seconds_sum", None] == 0.05
    assert values["vllm:iteration_tokens_total_count", None] == 1
    assert values["vllm:lora_requests_info", "2", "a,b", ""] == 1.5e9
    assert values["vllm:cache_config_info", "16", "auto", "True", "0.9", "512"] == 1


def test_no_vllm_metrics_without_a_model(metrics):
    """A gateway without vLLM models does not report them."""
    assert list(families(metrics.registry, [])) == []


def test_openmetrics_parser_accepts_vllm_metrics(metrics):
    """They are valid next to the gateway's own."""
    other = VLLMModel(model="other", version="2")
    own = [*metrics.registry.collect(), *families(metrics.registry, [DEMO, other])]

    read = list(text_string_to_metric_families(exposition.as_openmetrics(own, "").decode()))

    named = {family.name for family in read}
    assert {"vllm:prompt_tokens", "vllm:e2e_request_latency_seconds"} <= named


def test_catalog_matches_the_reported_metrics(metrics):
    """Names, types, help texts and labels are those of the catalog, and only audio has our name."""
    reported = {
        family.name: (family.type, family.documentation, set(family.samples[0].labels) - {"le"})
        for family in families(metrics.registry, [DEMO])
    }
    del reported["openai_frontend_audio_seconds"]

    assert reported == {each.name: (each.kind, each.help, set(each.labels)) for each in ALL}
