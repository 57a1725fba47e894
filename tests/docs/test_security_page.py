"""docs/security.md: each class of vulnerability has a countermeasure and tests."""

import re

import pytest

from tests.gateway_process import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Classes of vulnerabilities")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| class")
]
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests/security").glob("test_*.py"))


def paths(cell: str) -> list[str]:
    return re.findall(r"`(tests/[\w/]+\.py)`", cell)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_has_a_countermeasure_and_tests(row):
    """The tests exist, and the first one is in tests/security."""
    name, rule, tests = row

    assert name
    assert rule
    assert paths(tests)
    assert paths(tests)[0].startswith("tests/security/")
    assert [path for path in paths(tests) if not (ROOT / path).is_file()] == []


def test_every_security_test_has_a_row():
    told = {path for _, _, tests in ROWS for path in paths(tests)}

    assert {str(path) for path in TESTS} - told == set()
    assert len(ROWS) >= 19


def test_security_policy_and_page_are_linked():
    """SECURITY.md and the page refer to each other."""
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "SECURITY.md" in PAGE


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`--([a-z-]+)", PAGE))))
def test_named_settings_exist(name):
    from openai_frontend.config.settings import Settings

    assert name.replace("-", "_") in Settings.model_fields
