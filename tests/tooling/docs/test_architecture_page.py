"""docs/architecture.md names only files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


NAMED = set(re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", PAGE))


def test_every_named_file_exists() -> None:
    """Paths are relative to the package or to the root."""

    missing = {
        path
        for path in NAMED
        if not (ROOT / path).exists() and not (ROOT / "openai_frontend" / path).exists()
    }
    assert missing == set()


def test_page_names_files() -> None:
    """Otherwise the check above would pass trivially."""

    assert "contracts/vllm.py" in NAMED
