"""docs/conformance.md agrees with the SDK that is installed and with the marks of all tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conformance.page import PAGE, WRITE, Claim, Conformance
from tests.api.conformance.plugin import CLAIMS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def conformance(request, tmp_path_factory) -> Conformance:
    """What the marks of every test claim, whichever tests this run has."""
    claims = request.config.stash[CLAIMS]
    if claims.whole:
        return Conformance(claims.collected())
    file = tmp_path_factory.mktemp("conformance") / "claims"
    options = ["--collect-only", "-q", f"--conformance-claims={file}"]
    command = [sys.executable, "-m", "pytest", *options]
    collection = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collection.returncode == 0, collection.stdout[-2000:]
    return Conformance(Claim(*line.split(" ", 2)) for line in file.read_text().splitlines())


def test_every_field_of_the_sdk_has_a_test(conformance):
    """A field without a mark is a gap; so is one that OpenAI adds when the SDK is bumped."""
    assert conformance.gaps() == []


def test_marks_name_fields(conformance):
    """A mark whose field does not exist would show nothing."""
    assert conformance.unknown() == []


def test_the_page_agrees_with_the_marks(request, conformance):
    """The page is what a run of all tests would write if they pass."""
    if request.config.option.write_conformance:
        pytest.skip("this run writes the page")

    assert PAGE.read_text() == conformance.page(), WRITE
