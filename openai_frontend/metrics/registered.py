"""Declared families as `prometheus_client` has them. Knows none of them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from openai_frontend.metrics.family import MetricSpec


def counter(registry: CollectorRegistry, family: MetricSpec) -> Counter:
    """One that only goes up."""
    return Counter(family.name, family.help, family.labels, registry=registry)


def gauge(registry: CollectorRegistry, family: MetricSpec) -> Gauge:
    """One that goes up and down."""
    return Gauge(family.name, family.help, family.labels, registry=registry)


def histogram(registry: CollectorRegistry, family: MetricSpec) -> Histogram:
    """One with buckets."""
    return Histogram(
        family.name, family.help, family.labels, buckets=family.bounds, registry=registry
    )
