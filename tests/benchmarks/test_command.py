import json
import subprocess
import sys

import pytest

from benchmarks.budgets import BUDGETS
from benchmarks.figures import FIGURES
from benchmarks.server_process import ROOT


@pytest.mark.slow
def test_the_quick_benchmark_measures_everything(tmp_path):
    """One round against the real server: every figure is there, and each token was one chunk."""

    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--json", str(file)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert set(figures) == {figure.name for figure in FIGURES}
    assert figures["tokens_per_chunk"]["median"] == 1
    assert all(value["median"] > 0 for value in figures.values())


def test_every_budget_has_its_figure():
    """A budget of a figure that nobody measures would never be looked at."""

    assert set(BUDGETS) <= {figure.name for figure in FIGURES}
