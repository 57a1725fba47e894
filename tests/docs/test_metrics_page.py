"""docs/metrics.md matches the metric catalogs."""

from openai_frontend.metrics import catalog, load
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.metrics.load import ServerLoad
from scripts.generate_metrics_docs import PAGE, page
from tests.fast.metrics.test_vllm import DEMO


def test_page_is_current() -> None:
    """`python -m scripts.generate_metrics_docs` would change nothing."""

    assert PAGE.read_text(encoding="utf-8") == page()


def test_catalog_has_what_the_gateway_reports() -> None:
    """The gateway reports exactly the metrics of the catalog, with their types."""
    idle = ServerLoad(running=0, waiting=0, kv_cache_usage=0)
    reported = [*GatewayMetrics().registry.collect(), *load.families(idle, [DEMO])]
    families = {family.name: family.type for family in reported}

    assert families == {family.name: family.kind for family in catalog.ALL}
