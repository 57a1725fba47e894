import asyncio
import gc

import pytest
from prometheus_client import parser

from openai_frontend.triton import _core

COUNTER, GAUGE, HISTOGRAM = range(3)


async def scrape(server, name):
    """The samples of a family as (name, labels, value), its kind and its help."""
    text = await asyncio.to_thread(server.metrics)
    for family in parser.text_string_to_metric_families(text):
        if family.name == name:
            samples = [(s.name, s.labels, s.value) for s in family.samples]
            return samples, family.type, family.documentation
    return None


async def test_counter(server):
    """A counter is in the core's metrics with its help, labels and value."""
    family = _core.MetricFamily(COUNTER, "test_chats_total", "Chats so far.")
    metric = _core.Metric(family, {"model": "mock", "kind": "a"}, [])
    metric.increment(2)
    metric.increment(0.5)

    samples, kind, documentation = await scrape(server, "test_chats")
    assert (kind, documentation) == ("counter", "Chats so far.")
    assert samples == [("test_chats_total", {"model": "mock", "kind": "a"}, 2.5)]


async def test_gauge(server):
    """A gauge goes up and down, and can be read."""
    family = _core.MetricFamily(GAUGE, "test_running", "Requests that run.")
    metric = _core.Metric(family, {"model": "mock"}, [])
    metric.set(7)
    metric.increment(-3)

    assert metric.value == 4
    assert (await scrape(server, "test_running"))[0] == [("test_running", {"model": "mock"}, 4)]


async def test_histogram(server):
    """A histogram has its buckets, sum and count."""
    family = _core.MetricFamily(HISTOGRAM, "test_seconds", "Time.")
    metric = _core.Metric(family, {}, [0.1, 1.0])
    for seconds in (0.05, 0.5, 5):
        metric.observe(seconds)
    found = {
        (name, labels.get("le")): value
        for name, labels, value in (await scrape(server, "test_seconds"))[0]
    }

    assert found == {
        ("test_seconds_bucket", "0.1"): 1,
        ("test_seconds_bucket", "1"): 2,
        ("test_seconds_bucket", "+Inf"): 3,
        ("test_seconds_count", None): 3,
        ("test_seconds_sum", None): 5.55,
    }


async def test_metrics_of_one_family(server):
    """A family has a metric for each set of labels."""
    family = _core.MetricFamily(GAUGE, "test_waiting", "Requests that wait.")
    metrics = {name: _core.Metric(family, {"model": name}, []) for name in ("a", "b")}
    metrics["b"].set(2)

    assert {
        labels["model"]: value for _, labels, value in (await scrape(server, "test_waiting"))[0]
    } == {
        "a": 0,
        "b": 2,
    }


async def test_dropped_metric(server):
    """A metric without references disappears; its family disappears with the last one."""
    family = _core.MetricFamily(GAUGE, "test_gone", "Short-lived.")
    metrics = [_core.Metric(family, {"number": str(number)}, []) for number in range(2)]
    del family, metrics[0]
    gc.collect()
    assert [labels["number"] for _, labels, _ in (await scrape(server, "test_gone"))[0]] == ["1"]

    metrics.clear()
    assert (await scrape(server, "test_gone")) is None


REFUSED = {
    "counter down": (COUNTER, [], lambda metric: metric.increment(-1)),
    "counter set": (COUNTER, [], lambda metric: metric.set(1)),
    "gauge observed": (GAUGE, [], lambda metric: metric.observe(1)),
    "histogram incremented": (HISTOGRAM, [1.0], lambda metric: metric.increment(1)),
    "histogram read": (HISTOGRAM, [1.0], lambda metric: metric.value),
}


@pytest.mark.parametrize(("kind", "buckets", "use"), REFUSED.values(), ids=REFUSED)
async def test_unsupported_operations_of_a_kind(server, kind, buckets, use):
    """A metric rejects operations that its kind does not support."""
    family = _core.MetricFamily(kind, f"test_kind_{kind}", "Kind.")
    metric = _core.Metric(family, {}, buckets)

    with pytest.raises(_core.TritonError):
        use(metric)


async def test_name_of_another_kind(server):
    """A family's name keeps its kind until the process ends, because the core stores it."""
    _core.MetricFamily(COUNTER, "test_taken", "First.")

    with pytest.raises(_core.TritonError, match="different type"):
        _core.MetricFamily(GAUGE, "test_taken", "Second.")


@pytest.mark.parametrize("name", ["", "has space", "1st"])
async def test_invalid_name(server, name):
    """A name that Prometheus does not allow is rejected."""
    with pytest.raises(_core.TritonError):
        _core.MetricFamily(COUNTER, name, "Bad.")


@pytest.mark.parametrize("labels", [{"key": 1}, {1: "value"}])
async def test_labels_that_are_not_text(server, labels):
    """They are rejected."""
    family = _core.MetricFamily(COUNTER, "test_labels_total", "Labels.")

    with pytest.raises((TypeError, RuntimeError)):
        _core.Metric(family, labels, [])
