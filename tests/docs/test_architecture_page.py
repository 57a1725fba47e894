"""docs/architecture.md and docs/extending.md name only files that exist."""

import re

import pytest

from tests.gateway_process import ROOT

# The example of a new file in a recipe
_EXAMPLES = {"engines/NAME/"}


def named(page: str) -> set[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return set(re.findall(r"`((?:\w+/)+(?:[\w-]+\.\w+)?)`", text)) - _EXAMPLES


@pytest.mark.parametrize("page", ["architecture.md", "extending.md"])
def test_every_named_file_exists(page: str) -> None:
    """Paths are relative to the package or to the root."""
    missing = {
        path
        for path in named(page)
        if not (ROOT / path).exists() and not (ROOT / "openai_frontend" / path).exists()
    }

    assert missing == set()
    assert "contracts/vllm.py" in named(page)
