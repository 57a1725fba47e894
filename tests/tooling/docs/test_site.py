"""The documentation site: its navigation, and the check for resources of other hosts."""

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


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<img src="//cdn.example/x.png">',
        '<link rel="stylesheet" href="http://fonts.example/x.css">',
    ],
)
def test_resources_of_other_hosts_are_found(html: str) -> None:
    parser = LoadedUrls()
    parser.feed(html)

    assert len(parser.urls) == 1


@pytest.mark.parametrize(
    "html",
    [
        '<script src="assets/x.js"></script>',
        '<a href="https://example.com">link</a>',
        '<link rel="canonical" href="https://example.com/">',
    ],
)
def test_links_and_local_resources_are_allowed(html: str) -> None:
    parser = LoadedUrls()
    parser.feed(html)

    assert parser.urls == []
