"""docs/images.md: the table agrees with the ranges of the gateway and with the Dockerfile."""

import re
from pathlib import Path

from packaging.requirements import Requirement

from scripts.setup import in_image

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "images.md").read_text()
# Tag, core, vLLM, TensorRT-LLM, and whether vLLM runs in process
ROWS = [
    line.strip("|").replace(" ", "").split("|")
    for line in PAGE.splitlines()
    if re.match(r"\| \d\d\.\d\d \|", line)
]
VERIFIED = [row for row in ROWS if row[2] != "notverified"]


def test_every_release_has_a_row() -> None:
    """A release a month, the newest first."""
    months = [12 * int(year) + int(month) for year, month in (row[0].split(".") for row in ROWS)]

    assert months == list(range(months[0], months[-1] - 1, -1))


def test_versions_of_the_core_descend() -> None:
    cores = [tuple(map(int, row[1].split("."))) for row in ROWS]

    assert cores == sorted(set(cores), reverse=True)


def test_vllm_in_process_is_in_the_range_of_the_build() -> None:
    """`scripts.setup.in_image` accepts the images that say yes, and no other."""
    [wanted] = [
        Requirement(text) for text in in_image.extra_requirements() if in_image.is_vllm(text)
    ]
    built = {row[0]: row[2] in wanted.specifier for row in VERIFIED}

    assert built == {row[0]: row[4] == "yes" for row in VERIFIED}
    assert set(built.values()) == {True, False}


def test_base_images_of_the_dockerfile_are_listed() -> None:
    """With the engine that the target needs."""
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    bases = re.findall(r"^ARG TRITON_(\w+)_IMAGE=\S+:(\d\d\.\d\d)-", text, re.M)
    columns = {"VLLM": 2, "TRTLLM": 3}
    rows = {row[0]: row for row in ROWS}

    assert {name for name, _ in bases} == set(columns)
    for name, tag in bases:
        assert re.fullmatch(r"[\d.]+", rows[tag][columns[name]])
