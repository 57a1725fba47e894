"""Pictures of the documentation: each is on a page, and none loads anything."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.generate_top_image import ADDRESS
from tests.gateway_process import ROOT

IMAGES = sorted((ROOT / "docs" / "images").glob("*.svg"))
PAGES = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_image_loads_nothing(image: Path) -> None:
    """No fonts, styles or pictures of other hosts: the only URL is the namespace."""
    text = image.read_text(encoding="utf-8")

    assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314  a file of this repository
    assert set(re.findall(r"https?:[^\s\"')<&]+", text)) <= {"http://www.w3.org/2000/svg", ADDRESS}
    assert "@import" not in text


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_image_is_on_a_page(image: Path) -> None:
    assert f"(images/{image.name})" in PAGES
