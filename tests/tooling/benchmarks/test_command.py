import json
import subprocess
import sys

import pytest

from benchmarks import results
from benchmarks.budgets import BUDGETS
from benchmarks.figures import C_FLOOR_FIGURES, FIGURES
from benchmarks.scenario import SCENARIOS
from benchmarks.server_process import ROOT

_OPTIONAL = {each.name for each in SCENARIOS if each.optional}


@pytest.mark.slow
def test_quick_benchmark_measures_everything(tmp_path):
    """The real server gives every figure, which is stored; refused scenarios are named."""

    command = [sys.executable, "-m", "benchmarks", "--quick", "--store", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    document = json.loads((tmp_path / "mock.json").read_text())
    skipped, figures = document["skipped"], document["figures"]
    assert set(skipped) <= {*_OPTIONAL, "floor in C"}
    assert all(f"skipped: {name}: {reason}" in done.stdout for name, reason in skipped.items())
    expected = {figure.name for figure in FIGURES if figure.scenario not in skipped}
    if "floor in C" in skipped:
        expected -= {figure.name for figure in C_FLOOR_FIGURES}
    assert set(figures) == expected
    assert all(value["median"] > 0 for value in figures.values())
    assert 1 <= figures["tokens_per_chunk_64"]["median"] <= 64
    assert figures["tokens_per_chunk_64_by_4"]["median"] >= 3.5
    assert "| CPU per streamed chunk, 64 streams |" in (tmp_path / "mock.md").read_text()


def test_every_budget_has_its_figure():
    """A budget for a figure that is not measured would never be checked."""

    assert set(BUDGETS) <= {figure.name for figure in FIGURES}


def test_figure_names_are_unique():
    """Of two figures with one name, the second would replace the first."""

    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_results_are_stored_next_to_the_benchmarks():
    """`--store` without a folder writes to the folder that the documentation names."""

    assert results.FOLDER == ROOT / "benchmarks" / "results"
