"""Pictures of the documentation: generated ones are current, and none loads anything."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openai_frontend.cli.top import view
from scripts import generate_dashboard_image, generate_top_image
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


def test_picture_of_the_dashboard_is_current() -> None:
    """`python -m scripts.generate_dashboard_image` draws it again."""
    drawn = generate_dashboard_image.IMAGE.read_text(encoding="utf-8")

    assert drawn == generate_dashboard_image.page()


def test_picture_of_top_has_every_column() -> None:
    """`python -m scripts.generate_top_image` draws it again."""
    image = generate_top_image.IMAGE.read_text(encoding="utf-8").replace("&#160;", " ")

    columns = [column.heading for column in view._COLUMNS]
    assert [heading for heading in columns if heading not in image] == []
