"""The build of the GPU image stops at a vLLM that we do not drive."""

import importlib.metadata
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/docker/check_vllm.py"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("0.32.0", None),
        ("0.32.1+cu130", None),
        (
            "0.31.2",
            "the base image has vLLM 0.31.2; <0.33,>=0.32 is needed: choose another release",
        ),
        (
            "0.33.0",
            "the base image has vLLM 0.33.0; <0.33,>=0.32 is needed: choose another release",
        ),
    ],
)
def test_the_version_of_the_image_is_compared(
    monkeypatch: pytest.MonkeyPatch, found: str, problem: str | None
) -> None:
    """The range is the one of pyproject.toml; a local build tag does not matter."""

    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["problem"].__globals__, "version", lambda _: found)
    assert script["problem"]() == problem


def test_an_image_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain Triton image is told apart."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["problem"].__globals__, "version", missing)
    assert script["problem"]() == "the base image has no vLLM; <0.33,>=0.32 is needed"
