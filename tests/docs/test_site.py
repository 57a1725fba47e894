"""The documentation site: its navigation, and the check for resources of other hosts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts.docs_site import LoadedUrls
from tests.gateway_process import ROOT


def nav_pages(entry: object) -> list[str]:
    match entry:
        case str():
            return [entry]
        case dict():
            return [page for value in entry.values() for page in nav_pages(value)]
        case list():
            return [page for item in entry for page in nav_pages(item)]
    raise TypeError(entry)


def test_navigation_lists_every_page() -> None:
    """Decisions are linked from their index."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    _, _, nav = text.partition("\nnav:\n")

    listed = nav_pages(yaml.safe_load(nav))
    decisions = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    files = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    missing = files - set(listed)
    assert set(listed) <= files
    assert [name for name in missing if Path(name).parent != Path("decisions")] == []
    assert [name for name in missing if f"({Path(name).name})" not in decisions] == []


def test_decisions_are_last_and_the_first_steps_first() -> None:
    """A newcomer reads the navigation in order, also by the links to the next page."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    pages = nav_pages(yaml.safe_load(nav))

    steps = ["index.md", "install.md", "repositories.md", "agents.md", "tools.md", "scale.md"]
    assert [page for page in pages if page in steps] == steps
    assert pages[-1] == "decisions/README.md"


def test_figures_of_the_home_page_are_those_of_the_benchmarks() -> None:
    rows = re.findall(r"^\| [^|]+ \| \*\*.*$", (ROOT / "docs/index.md").read_text("utf-8"), re.M)
    benchmarks = (ROOT / "docs/benchmarks.md").read_text("utf-8").replace("*", "")

    assert len(rows) == 3
    for row in rows:
        cells = [cell.strip() for cell in row.replace("*", "").split("|")[2:5]]
        assert f"| {' | '.join(cells)} |" in benchmarks


SOURCES = {".py", ".cc", ".h"}


@pytest.fixture(scope="module")
def source_files() -> list[str]:
    folders = [ROOT / name for name in ("openai_frontend", "native", "tests")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCES]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in files]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/decisions").glob("0*.md")), ids=lambda page: page.stem
)
def test_a_decision_is_short_and_names_files_that_exist(
    page: Path, source_files: list[str]
) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.(?:py|cc|h))`", text)

    assert len(text.split()) <= 250
    assert any(name.startswith("tests/") for name in named)
    assert [name for name in named if not any(f.endswith(f"/{name}") for f in source_files)] == []


def test_decisions_that_the_code_cites_exist(source_files: list[str]) -> None:
    cited = {
        page
        for name in source_files
        for page in re.findall(
            r"docs/(decisions/\d[\w.-]*\w)", (ROOT / name[1:]).read_text("utf-8")
        )
    }

    assert cited
    assert [page for page in cited if not (ROOT / "docs" / page).exists()] == []


_DELIMITER_ROW = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")


def rows_outside_tables(text: str) -> Iterator[str]:
    """Rows that start a block without a delimiter row below them; they render as raw text."""
    prose = re.sub(r"(?ms)^( *)(```+|~~~+).*?^\1\2", "", text)
    lines = ["", *prose.splitlines(), ""]
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        starts_block = line.lstrip().startswith("|") and not before.lstrip().startswith("|")
        if starts_block and not _DELIMITER_ROW.fullmatch(after):
            yield line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("| a |\n|---|\n| b |\n\n| c |\n", ["| c |"]),
        ("| a | b |\n| c | d |\n", ["| a | b |"]),
        ("| a | b |\n|:--|--:|\n| c | d |\n", []),
        ("```\n| a |\n```\n", []),
    ],
)
def test_rows_outside_tables_are_found(text: str, expected: list[str]) -> None:
    assert list(rows_outside_tables(text)) == expected


def test_every_table_row_belongs_to_a_table() -> None:
    """An empty line ends a table, and the rows after it would show as text with pipes."""
    folders = (
        ROOT,
        *(ROOT / name for name in ("docs", "docs/decisions", "docs/examples", "scripts")),
    )
    pages = [page for folder in folders for page in sorted(folder.glob("*.md"))]
    problems = {page.name: list(rows_outside_tables(page.read_text("utf-8"))) for page in pages}

    assert {name: rows for name, rows in problems.items() if rows} == {}


@pytest.mark.parametrize(
    ("html", "loaded"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<img src="//cdn.example/x.png">', 1),
        ('<link rel="stylesheet" href="http://fonts.example/x.css">', 1),
        ('<script src="assets/x.js"></script>', 0),
        ('<a href="https://example.com">link</a>', 0),
        ('<link rel="canonical" href="https://example.com/">', 0),
    ],
)
def test_only_resources_of_other_hosts_are_found(html: str, loaded: int) -> None:
    parser = LoadedUrls()
    parser.feed(html)

    assert len(parser.urls) == loaded
