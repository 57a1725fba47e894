"""Writes docs/metrics.md from what the metrics declare of themselves,
and scripts/metrics_page.md."""

from collections.abc import Iterable
from pathlib import Path

from openai_frontend.metrics import catalog, vllm_catalog
from openai_frontend.metrics.family import MetricSpec

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
BACKENDS = Path(__file__).parent / "metrics_page.md"  # what is not ours, and passes through

HEAD = """\
# Metrics

Written by `python -m scripts.generate_metrics_docs` from what the metrics declare of themselves
(`openai_frontend/metrics/`); do not edit.

`/metrics` has the gateway's own numbers, vLLM's and Triton's in one scrape: OpenMetrics for a
scraper that takes it, Prometheus' text otherwise. A counter's samples end in `_total`, a
histogram's in `_bucket`, `_sum` and `_count`.

In every family the label `model` is the model's name in Triton, so that families join by it:
requests that name an alias, a version (`m@2`) or an adapter (`m:adapter`) count for `m`. Families
of answers also have the version that answered (`version`, its number) and the adapter (`adapter`,
empty without one). The name that a request gave is in the access log. A name that a client made up
is never a label.
"""

COLUMNS = "| metric | kind | what it says | when it moves |\n|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    return (
        HEAD
        + section("The gateway's own", catalog.ALL)
        + section("vLLM's", vllm_catalog.ALL)
        + "\n"
        + BACKENDS.read_text(encoding="utf-8")
    )


def section(name: str, families: Iterable[MetricSpec]) -> str:
    """One table."""
    return f"\n## {name}\n\n{COLUMNS}{''.join(map(row, families))}"


def row(family: MetricSpec) -> str:
    """One line of a table."""
    labels = ", ".join(f"`{label}`" for label in family.labels)
    name = f"`{family.name}`" + (f" ({labels})" if labels else "")
    return f"| {' | '.join((name, family.kind, family.help, family.runbook))} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
