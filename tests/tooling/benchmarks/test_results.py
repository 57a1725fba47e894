import importlib
import json
from typing import Any

import pytest

from benchmarks import plots, results
from benchmarks.figures import FIGURES

PLOTS = {
    f"mock_{what}.{form}" for what in ("chunk", "request", "latency") for form in ("png", "svg")
}
DOCUMENT: dict[str, Any] = {
    "date": "2030-01-01",
    "commit": "abc",
    "machine": {"cpu": "A CPU"},
    "figures": {
        figure.name: {"median": float(at), "low": at - 0.5, "high": at + 1.0}
        for at, figure in enumerate(FIGURES, start=1)
        if figure.scenario != "tools"  # as if it were skipped
    },
}


@pytest.fixture
def without_matplotlib(monkeypatch):
    def missing(name: str):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)


def names(folder) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_run_is_stored_completely(tmp_path):
    """Document, table, and plots in both formats; a skipped scenario breaks none of them."""

    pytest.importorskip("matplotlib")
    results.store(tmp_path / "results", DOCUMENT, "# A table\n")

    assert names(tmp_path / "results") == {"mock.json", "mock.md", *PLOTS}
    assert json.loads((tmp_path / "results" / "mock.json").read_text()) == DOCUMENT
    assert (tmp_path / "results" / "mock_chunk.png").read_bytes().startswith(b"\x89PNG")


def test_plots_have_labels(tmp_path):
    """Scenario, figure and commit are text in the image; skipped scenarios do not appear."""

    pytest.importorskip("matplotlib")
    plots.draw(DOCUMENT, tmp_path, "mock")
    drawn = (tmp_path / "mock_request.svg").read_text()

    median = DOCUMENT["figures"]["cpu_us_per_request_chat"]["median"]
    assert all(text in drawn for text in ("CPU per request (us)", "A CPU, commit abc", ">chat<"))
    assert f">{median:.1f}<" in drawn
    assert "chat with tools" not in drawn


def test_equal_figures_make_equal_plots(tmp_path):
    """The files have no date and nothing random, so a repeated run changes only its own results."""

    pytest.importorskip("matplotlib")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        plots.draw(DOCUMENT, folder, "mock")

    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in PLOTS)


def test_results_are_stored_without_matplotlib(tmp_path, capsys, without_matplotlib):
    """The message says how to get the plots."""

    results.store(tmp_path, DOCUMENT, "# A table\n")

    assert names(tmp_path) == {"mock.json", "mock.md"}
    assert "pip install matplotlib" in capsys.readouterr().err
