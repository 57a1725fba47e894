"""The load of the whole server, as load balancers read it."""

import json

import pytest
from prometheus_client.metrics_core import Metric

from openai_frontend.metrics.load import ServerLoad, families
from tests.fast.metrics.test_vllm import DEMO

ENGINES: list[dict[str, float]] = [
    {"running": 3, "waiting": 2, "vllm:kv_cache_usage_perc": 0.25},
    {"running": 1, "waiting": 1, "vllm:kv_cache_usage_perc": 0.5},
    {"running": 4, "waiting": 0},
]
LOAD = ServerLoad.of(running=20, queued=7, engines=ENGINES)


def values(metrics: list[Metric]) -> dict[str, float]:
    """By name; none of the samples has a label."""
    samples = [sample for metric in metrics for sample in metric.samples]
    assert [sample.labels for sample in samples] == [{}] * len(samples)
    return {sample.name.removeprefix("openai_frontend_load_"): sample.value for sample in samples}


def test_waiting_counts_the_gateways_queues_and_the_engines():
    """What waits in an engine is not running, and the fullest cache counts."""
    assert ServerLoad(running=17, waiting=10, kv_cache_usage=0.5) == LOAD


def test_engines_that_report_more_than_the_gateway_knows():
    """An engine's count can be older than the gateway's: `running` is never negative."""
    load = ServerLoad.of(running=1, queued=0, engines=ENGINES)

    assert (load.running, load.waiting) == (0, 1)


def test_gauges_have_one_value_per_server():
    assert values(list(families(LOAD, [DEMO]))) == {
        "running": 17,
        "waiting": 10,
        "kv_cache_usage": 0.5,
        "kv_cache_blocks": 512,
        "kv_cache_block_size": 16,
    }


def test_size_of_the_cache_is_left_out_where_no_engine_has_one():
    idle = ServerLoad.of(running=0, queued=0, engines=[])

    assert values(list(families(idle, []))) == {"running": 0, "waiting": 0, "kv_cache_usage": 0}


@pytest.mark.parametrize("asked", ["TEXT", "text"])
def test_header_as_text(asked):
    """In ORCA's format, with the names that vLLM uses and one more."""
    assert LOAD.header(asked) == (
        "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=10.0, "
        "named_metrics.num_requests_running=17.0"
    )


def test_header_as_json():
    kind, _, report = (LOAD.header("JSON") or "").partition(" ")

    assert (kind, json.loads(report)) == (
        "JSON",
        {
            "named_metrics": {
                "kv_cache_usage_perc": 0.5,
                "num_requests_waiting": 10,
                "num_requests_running": 17,
            }
        },
    )


def test_unknown_format_gets_no_header():
    """As in vLLM: the request itself is valid."""
    assert LOAD.header("BIN") is None
