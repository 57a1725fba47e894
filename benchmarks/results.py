"""Writes what a run found below benchmarks/results."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots, report

FOLDER = Path(__file__).with_name("results")
_NAME = "mock"


def store(folder: Path, document: Mapping[str, Any], table: str) -> None:
    """JSON, table and plots; without matplotlib the plots are left as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_NAME}.json").write_text(report.as_json(document), encoding="utf-8")
    (folder / f"{_NAME}.md").write_text(table, encoding="utf-8")
    try:
        plots.draw(document, folder, _NAME)
    except plots.NoMatplotlib as error:
        sys.stderr.write(f"benchmarks: {error}\n")
