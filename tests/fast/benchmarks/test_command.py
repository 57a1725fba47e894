from benchmarks.budgets import BUDGETS
from benchmarks.figures import FIGURES


def test_every_budget_has_its_figure():
    """A budget for a figure that is not measured would never be checked."""

    assert set(BUDGETS) <= {figure.name for figure in FIGURES}
