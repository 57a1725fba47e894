"""The workflows of GitHub: they run make targets only, pinned actions, and little permission."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.check_images import IMAGES
from scripts.setup.lock import PYTHONS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
# BaseLoader: YAML 1.1 would read the key `on` as true.
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # noqa: S506  makes strings only
    for path in FILES
}
JOBS = {
    f"{workflow}.{name}": job
    for workflow, document in WORKFLOWS.items()
    for name, job in document["jobs"].items()
}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WRITES = {
    "docs.deploy": {"pages": "write", "id-token": "write"},
    "release.pypi": {"id-token": "write", "attestations": "write"},
    "release.images": {"contents": "read", "packages": "write"},
}


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    """None in a job that calls another workflow."""
    found: list[dict[str, Any]] = job.get("steps", [])
    return found


def commands(job: dict[str, Any]) -> Iterator[str]:
    """What a job runs, once for each value of the matrix that it names."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for run in (step["run"] for step in steps(job) if "run" in step):
        named = re.search(r"\$\{\{ matrix\.(\w+) \}\}", run)
        for value in matrix[named[1]] if named else [""]:
            yield run.replace(named[0], value) if named else run


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_jobs_run_existing_make_targets(job: dict[str, Any]) -> None:
    """So every check can be repeated on a developer's machine."""
    words = [re.fullmatch(r"make ([a-z-]+)( [A-Z_]+=\S+)*", run) for run in commands(job)]

    assert [run for run, found in zip(commands(job), words, strict=True) if not found] == []
    assert {found[1] for found in words if found} - TARGETS == set()


def test_matrices_are_expanded() -> None:
    """The test above sees every target of the checks."""
    assert "make check-images" in list(commands(JOBS["tests.checks"]))


def test_jobs_that_write_are_known() -> None:
    """Only publishing needs more than reading."""
    assert {
        name: job["permissions"] for name, job in JOBS.items() if "permissions" in job
    } == WRITES


def test_every_python_is_tested() -> None:
    """Those that pyproject.toml and the locks name."""
    assert JOBS["tests.tests"]["strategy"]["matrix"]["python"] == list(PYTHONS)


def test_every_vllm_of_make_compat_is_tested() -> None:
    """Weekly, each on a machine of its own."""
    [default] = re.findall(r"VLLM_VERSIONS\),([\d. ]+)\)", (ROOT / "Makefile").read_text())

    assert JOBS["compatibility.vllm"]["strategy"]["matrix"]["vllm"] == default.split()


@pytest.mark.parametrize("job", ["images.image", "release.images"])
def test_every_image_is_built(job: str) -> None:
    """The targets of the Dockerfile."""
    assert JOBS[job]["strategy"]["matrix"]["target"] == list(IMAGES)


def test_release_needs_tests() -> None:
    """Nothing is published before the tests pass."""
    assert JOBS["release.pypi"]["needs"] == ["tests", "wheels"]
    assert JOBS["release.images"]["needs"] == "tests"


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_checkout_leaves_no_credentials(job: dict[str, Any]) -> None:
    """Later steps cannot push."""
    checkouts = [each for each in steps(job) if "actions/checkout@" in each.get("uses", "")]

    assert [each for each in checkouts if each["with"] != {"persist-credentials": "false"}] == []
