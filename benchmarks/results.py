"""Stores a run below benchmarks/results: its figures as JSON, which git ignores, and a table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")


def write_json(document: Mapping[str, Any], path: Path) -> None:
    """The document as a file."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def store(folder: Path, name: str, document: Mapping[str, Any], table: str) -> None:
    """`<name>.json` and `<name>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(document, folder / f"{name}.json")
    (folder / f"{name}.md").write_text(table, encoding="utf-8")
