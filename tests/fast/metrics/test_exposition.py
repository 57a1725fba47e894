import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families

from openai_frontend.generation import UsageCounter
from openai_frontend.metrics import exposition, vllm
from openai_frontend.metrics.gateway import GatewayMetrics, GenerationLabels
from openai_frontend.metrics.vllm import VLLMModel

CORE = """\
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="demo",version="1"} 3
# HELP nv_energy_total Joules
# TYPE nv_energy_total counter
nv_energy_total 1.5
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# HELP vllm:e2e_request_latency_seconds Seconds
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_count{model="demo",version="1"} 1
vllm:e2e_request_latency_seconds_sum{model="demo",version="1"} 0.1
vllm:e2e_request_latency_seconds_bucket{model="demo",version="1",le="1"} 1
vllm:e2e_request_latency_seconds_bucket{model="demo",version="1",le="+Inf"} 1
"""


def values(families):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def own():
    metrics = GatewayMetrics()
    metrics.answered("/v1/chat/completions", "demo", 200, 0.02)
    metrics.generations_of(GenerationLabels("demo", "1")).begin(UsageCounter()).end()
    return list(metrics.registry.collect())


def test_text_format_keeps_the_cores_text():
    """It follows the gateway's own metrics unchanged."""
    text = exposition.plain(own(), CORE).decode()

    assert text.endswith(CORE)
    assert "openai_frontend_requests_total" in text.removesuffix(CORE)


def test_openmetrics_is_valid():
    """The strict OpenMetrics parser accepts it; names and values equal those of the text format."""
    families = own()
    text = exposition.as_openmetrics(families, CORE).decode()

    parsed = values(openmetrics_families(text))
    plain = values(plain_families(exposition.plain(families, "").decode()))

    assert parsed[("nv_inference_request_success", ("model", "demo"), ("version", "1"))] == 3
    assert parsed[("nv_energy_total",)] == 1.5
    assert parsed[("nv_cpu_utilization",)] == 0.25
    assert parsed[
        "vllm:e2e_request_latency_seconds_bucket", ("le", "1.0"), ("model", "demo"),
        ("version", "1"),
    ] == 1  # fmt: skip
    assert plain.items() <= parsed.items()


def test_no_creation_times():
    """Both formats leave out `_created`, which would double the text."""
    families = own()

    assert b"_created" not in exposition.plain(families, CORE)
    assert b"_created" not in exposition.as_openmetrics(families, CORE)


NVIDIA = """\
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_count{model="theirs",version="1"} 1
vllm:iteration_tokens_total_sum{model="theirs",version="1"} 7
vllm:iteration_tokens_total_bucket{model="theirs",version="1",le="8"} 1
vllm:iteration_tokens_total_bucket{model="theirs",version="1",le="+Inf"} 1
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model="theirs",version="1"} 5
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# HELP vllm:e2e_request_latency_seconds Seconds
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_count{model="theirs",version="1"} 1
vllm:e2e_request_latency_seconds_sum{model="theirs",version="1"} 0.1
vllm:e2e_request_latency_seconds_bucket{model="theirs",version="1",le="1"} 1
vllm:e2e_request_latency_seconds_bucket{model="theirs",version="1",le="+Inf"} 1
"""


@pytest.mark.parametrize(
    ("write", "read"),
    [(exposition.plain, plain_families), (exposition.as_openmetrics, openmetrics_families)],
)
def test_metrics_that_both_report_are_merged(write, read):
    """NVIDIA's vLLM backend and our own engine share metric names; each appears once."""
    metrics = GatewayMetrics()
    metrics.generations_of(GenerationLabels("ours", "1")).begin(UsageCounter()).end()
    steps: list[tuple[str, dict[str, str], float]] = [
        ("vllm:iteration_tokens_total_count", {}, 1),
        ("vllm:iteration_tokens_total_sum", {}, 3),
        ("vllm:iteration_tokens_total_bucket", {"le": "+Inf"}, 1),
    ]
    model = VLLMModel(model="ours", version="1", samples=steps)
    own = [*metrics.registry.collect(), *vllm.families(metrics.registry, [model])]

    text = write(own, NVIDIA).decode()

    parsed = list(read(text))
    [tokens] = [family for family in parsed if family.name == "vllm:prompt_tokens"]
    by_model = {each.labels["model"]: each.value for each in tokens.samples}
    assert by_model == {"ours": 0, "theirs": 5}
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    [both] = [family for family in parsed if family.name == "vllm:iteration_tokens_total"]
    sums = {each.labels["model"]: each.value for each in both.samples if "_sum" in each.name}
    assert sums == {"ours": 3, "theirs": 7}
    assert "nv_cpu_utilization 0.25" in text
