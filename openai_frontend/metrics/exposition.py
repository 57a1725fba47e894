"""The text of `/metrics`: the gateway's metrics and the core's, in Prometheus text format or
OpenMetrics.
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

_BLOCKS = re.compile(r"^(?=# HELP )", re.MULTILINE)  # one per metric
_NAME = re.compile(r"^# HELP | .*$")  # what surrounds it in a block's first line

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def plain(own: Iterable[Metric], core: str) -> bytes:
    """Prometheus text format; the core's part is unchanged."""
    families, rest = _joined(own, core)
    return exposition.generate_latest(_Families(families)) + rest.encode()


def as_openmetrics(own: Iterable[Metric], core: str) -> bytes:
    """OpenMetrics 1.0. Counters must end in `_total` there; the core's that do not keep their
    names, which dashboards use, and become untyped.
    """
    families, rest = _joined(own, core)
    written = set(_DECLARED.findall(rest))
    core_families = [
        _as_written(family, written) for family in text_string_to_metric_families(rest)
    ]
    families_of_both = _Families([*families, *core_families])
    write: Callable[..., bytes] = openmetrics.generate_latest
    return write(families_of_both, openmetrics.ALLOWUTF8)  # keeps the colons in names


@dataclass(frozen=True)
class _Families:
    """The argument that the library's writers expect."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _joined(own: Iterable[Metric], core: str) -> tuple[list[Metric], str]:
    """Merges metrics that several report, because a scrape may contain a metric only once: the
    gateway and its engines, and NVIDIA's vLLM backend, which uses the names that we use for our own
    engine's models. Returns ours and the rest of the core's text.
    """
    by_name: dict[str, Metric] = {}
    for family in _without_created(own):
        if (known := by_name.setdefault(family.name, family)) is not family:
            known.samples += family.samples
    rest = []
    for block in _BLOCKS.split(core):
        name = _NAME.sub("", block.partition("\n")[0])
        # Counters are registered without `_total`, but a histogram's name may end in it too
        ours = by_name.get(name) or by_name.get(name.removesuffix("_total"))
        if ours is None:
            rest.append(block)
            continue
        for theirs in text_string_to_metric_families(block):
            ours.samples += [_with_decimal_bound(sample) for sample in theirs.samples]
    return [*by_name.values()], "".join(rest)


def _without_created(families: Iterable[Metric]) -> Iterator[Metric]:
    """Drops the creation time of each series, which would double the text."""
    for family in families:
        samples = [each for each in family.samples if not each.name.endswith("_created")]
        family.samples = samples
        yield family


def _as_written(family: Metric, written: Collection[str]) -> Metric:
    """The library's parser moves `_total` from a counter's name to its samples even if it was not
    there, and OpenMetrics requires decimal bucket bounds.
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
