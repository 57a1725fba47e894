"""docs/conformance.md agrees with the installed SDK and the marks of all tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conformance.endpoints import Endpoint
from tests.api.conformance.page import PAGE, WRITE, Claim, Conformance
from tests.api.conformance.plugin import CLAIMS
from tests.api.conformance.request_fields import RequestField

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def conformance(request, tmp_path_factory) -> Conformance:
    """What the marks of all tests claim, whichever tests this run selects."""
    claims = request.config.stash[CLAIMS]
    if claims.complete:
        return Conformance(claims.collected())
    file = tmp_path_factory.mktemp("conformance") / "claims"
    options = ["--collect-only", "-q", f"--conformance-claims={file}"]
    command = [sys.executable, "-m", "pytest", *options]
    collection = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collection.returncode == 0, collection.stdout[-2000:]
    return Conformance(Claim(*line.split(" ", 2)) for line in file.read_text().splitlines())


def test_every_field_of_the_sdk_has_a_test(conformance):
    """A field without a mark is a gap; so is a field that a new SDK version adds."""
    assert conformance.gaps() == []


def test_every_mark_names_an_existing_field(conformance):
    """A mark for a field that does not exist would show nothing."""
    assert conformance.unknown() == []


def test_page_agrees_with_the_marks(request, conformance):
    """The page equals what a complete passing run would write."""
    if request.config.option.write_conformance:
        pytest.skip("this run writes the page")

    assert PAGE.read_text() == conformance.page(), WRITE


def sample(*claims: tuple[str, str]) -> Conformance:
    fields = [RequestField(name, name) for name in ("a", "a.b", "c")]
    return Conformance([Claim(*claim, "a test") for claim in claims], [Endpoint("x", "X", fields)])


def test_field_without_a_mark_is_a_gap():
    """A mark on the enclosing field does not show how the inner field is handled."""
    assert sample(("x.a", "honoured")).gaps() == ["x.a.b", "x.c"]


def test_mark_with_a_misspelt_name_is_reported():
    assert sample(("x.d", "honoured"), ("y.a", "refused")).unknown() == ["x.d", "y.a"]
