"""The documentation's site on a phone. `make docs` builds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.gateway_process import ROOT

SITE = ROOT / "build" / "site"
PHONE = {"width": 390, "height": 844}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A browser asks for hundreds of files."""


@contextmanager
def served() -> Iterator[str]:
    handler = partial(Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def phone(browser: Any) -> Iterator[Any]:
    with served() as url:
        context = browser.new_context(viewport=PHONE, base_url=url)
        yield context.new_page()
        context.close()


# Cells whose text is cut at the screen's edge, and that no box around them scrolls
_CUT = """
[...document.querySelectorAll("article td")].filter(cell => {
  const box = cell.getBoundingClientRect();
  return box.width > 0 && (box.left < 0 || box.right > innerWidth);
}).map(cell => cell.textContent.slice(0, 40))
"""


def test_settings_are_readable_on_a_phone(phone):
    """Every cell of the tables is on the screen, and no table has tall empty rows: a description
    is at least half as wide as the screen.
    """
    phone.goto("/settings.html")
    rows = phone.locator("article tbody tr").all()
    widths = [row.locator("td").last.bounding_box()["width"] for row in rows]

    assert len(rows) >= 100
    assert phone.evaluate(_CUT) == []
    assert min(widths) > PHONE["width"] / 2


def test_no_page_is_wider_than_a_phone(phone):
    pages = [str(path.relative_to(SITE)) for path in SITE.rglob("*.html")]
    widths = {}
    for page in sorted(pages):
        phone.goto(f"/{page}")
        widths[page] = phone.evaluate("document.documentElement.scrollWidth")

    assert len(widths) > 80
    assert {page: width for page, width in widths.items() if width > PHONE["width"]} == {}


def test_search_finds_guides_before_decisions(phone):
    """Also where a decision has the word in its title."""
    phone.set_viewport_size({"width": 1280, "height": 900})
    phone.goto("/index.html")
    phone.get_by_label("Search").first.click()
    phone.keyboard.type("parser")
    results = phone.locator(".md-search-result__item > a")
    results.nth(1).wait_for()
    phone.set_viewport_size(PHONE)

    assert "/tools.html" in results.first.get_attribute("href")
    assert phone.locator(".md-search-result__item > a[href*=decisions]").count() > 0
