import gc
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from openai_frontend.metrics.instruments import HistogramFamily, ValueFamily

BOUNDS = (0.1, 1, 5, 1e7)


def written(*families):
    registry = CollectorRegistry()
    for family in families:
        registry.register(family)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


@pytest.mark.parametrize(
    ("kind", "name"), [(CounterMetricFamily, "n_total"), (GaugeMetricFamily, "n")]
)
def test_values_have_a_sample_for_each_set_of_labels(kind, name):
    """A label may be a number; the same labels give the same object."""
    family = ValueFamily(kind, "n", "help", ("route", "status"))
    family.labels("/a", 200).inc()
    family.labels("/a", 200).inc(2)
    family.labels("/b", 404).set(7)

    assert written(family) == [
        f'{name}{{route="/a",status="200"}} 3.0',
        f'{name}{{route="/b",status="404"}} 7.0',
    ]


def test_families_without_labels_are_reported_before_the_first_event():
    """A rate needs the zero before the first event."""
    assert written(ValueFamily(GaugeMetricFamily, "n", "help", ())) == ["n 0.0"]
    histogram = written(HistogramFamily("h", "help", (), (1.0,)))
    assert histogram == [
        'h_bucket{le="1.0"} 0.0',
        'h_bucket{le="+Inf"} 0.0',
        "h_count 0.0",
        "h_sum 0.0",
    ]


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 1e9))))
def test_histogram_writes_what_prometheus_client_writes(values):
    """The same values in both, with some exactly at a bucket's bound."""
    ours = HistogramFamily("h", "help", ("model",), BOUNDS)
    theirs = Histogram("h", "help", ("model",), buckets=BOUNDS, registry=None)
    theirs.labels("m")
    ours.labels("m")
    for value in values:
        ours.labels("m").observe(value)
        theirs.labels("m").observe(value)

    assert written(ours) == written(theirs)


@pytest.fixture
def collections_that_switch_threads():
    """Each allocation of a container may start a collection, and each lets other threads run."""
    thresholds = gc.get_threshold()

    def switch(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    gc.callbacks.append(switch)
    gc.set_threshold(10, 1_000_000, 1_000_000)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(switch)


def test_scrape_while_the_event_loop_adds_labels(collections_that_switch_threads):
    """Scrapes run on a thread; none fails, and the last has every value."""
    values = ValueFamily(GaugeMetricFamily, "n", "help", ("at",))
    histograms = HistogramFamily("h", "help", ("at",), BOUNDS)
    ended = threading.Event()
    failures: list[BaseException] = []

    def scrape():
        try:
            while not ended.is_set():
                written(values, histograms)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=scrape)
    thread.start()
    for at in range(3000):
        values.labels(at).inc()
        histograms.labels(at % 50).observe(at)
        time.sleep(0)  # a scrape may run
    ended.set()
    thread.join()

    assert failures == []
    assert len(written(values)) == 3000
