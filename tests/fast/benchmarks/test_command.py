from benchmarks import results
from benchmarks.budgets import BUDGETS
from benchmarks.figures import FIGURES
from benchmarks.server_process import ROOT


def test_every_budget_has_its_figure():
    """A budget for a figure that is not measured would never be checked."""

    assert set(BUDGETS) <= {figure.name for figure in FIGURES}


def test_figure_names_are_unique():
    """Of two figures with one name, the second would replace the first."""

    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_results_are_stored_next_to_the_benchmarks():
    """`--store` without a folder writes to the folder that the documentation names."""

    assert results.FOLDER == ROOT / "benchmarks" / "results"
