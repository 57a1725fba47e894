"""The text of `/metrics`: the gateway's families and the core's, in either of Prometheus' formats.

Knows no HTTP: the caller says which format was asked for.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_DECLARED = re.compile(r"^# TYPE (\S+) counter$", re.MULTILINE)

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def plain(own: Iterable[Metric], core: str) -> bytes:
    """Prometheus' old format; the core's part as the core wrote it."""
    return exposition.generate_latest(_Families(_lasting(own))) + core.encode()


def as_openmetrics(own: Iterable[Metric], core: str) -> bytes:
    """OpenMetrics 1.0. Its counters end in `_total`; a counter of the core's that does not keeps
    its name, which dashboards know, and says nothing of its type.
    """
    written = set(_DECLARED.findall(core))
    families = text_string_to_metric_families(core)
    core_families = [_as_written(family, written) for family in families]
    families_of_both = _Families([*_lasting(own), *core_families])
    write: Callable[..., bytes] = openmetrics.generate_latest
    return write(families_of_both, openmetrics.ALLOWUTF8)  # as names are: with their colons


@dataclass(frozen=True)
class _Families:
    """What the library's writers want: something to collect."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _lasting(families: Iterable[Metric]) -> Iterator[Metric]:
    """Without the time at which each series began, which would double the text."""
    for family in families:
        samples = [each for each in family.samples if not each.name.endswith("_created")]
        family.samples = samples
        yield family


def _as_written(family: Metric, written: Collection[str]) -> Metric:
    """The library's parser takes `_total` from a counter's name and gives it to its samples,
    whether or not it stood there; and OpenMetrics wants the bounds of buckets as decimals.
    """
    if family.type == "counter" and f"{family.name}_total" not in written:
        samples = [each._replace(name=each.name.removesuffix("_total")) for each in family.samples]
        return _family(family, "unknown", samples)
    if family.type == "histogram":
        return _family(family, "histogram", [_with_decimal_bound(each) for each in family.samples])
    return family


def _family(family: Metric, type_: str, samples: list[Sample]) -> Metric:
    changed = Metric(family.name, family.documentation, type_)
    changed.samples = samples
    return changed


def _with_decimal_bound(sample: Sample) -> Sample:
    if "le" not in sample.labels:
        return sample
    bound = repr(float(sample.labels["le"])).replace("inf", "+Inf")
    return sample._replace(labels={**sample.labels, "le": bound})
