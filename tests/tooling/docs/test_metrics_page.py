"""docs/metrics.md matches the metric catalogs."""

from openai_frontend.metrics import catalog
from openai_frontend.metrics.gateway import GatewayMetrics
from scripts.generate_metrics_docs import PAGE, page


def test_page_is_current() -> None:
    """`python -m scripts.generate_metrics_docs` would change nothing."""

    assert PAGE.read_text(encoding="utf-8") == page()


def test_catalog_matches_the_registry() -> None:
    """The gateway registers exactly the metrics of the catalog, with their types."""
    families = {family.name: family.type for family in GatewayMetrics().registry.collect()}

    assert families == {family.name: family.kind for family in catalog.ALL}
