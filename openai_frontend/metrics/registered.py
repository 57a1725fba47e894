"""Declared families as `prometheus_client` has them. Knows none of them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from openai_frontend.metrics.family import Family


def counter(registry: CollectorRegistry, family: Family) -> Counter:
    """One that only goes up."""
    return Counter(family.name, family.says, family.labels, registry=registry)


def gauge(registry: CollectorRegistry, family: Family) -> Gauge:
    """One that goes up and down."""
    return Gauge(family.name, family.says, family.labels, registry=registry)


def histogram(registry: CollectorRegistry, family: Family) -> Histogram:
    """One with buckets."""
    return Histogram(
        family.name, family.says, family.labels, buckets=family.bounds, registry=registry
    )
