"""The build of the GPU image fails with an unsupported vLLM."""

import importlib.metadata
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/docker/check_vllm.py"


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
def test_vllm_version_is_checked(
    monkeypatch: pytest.MonkeyPatch, found: str, problem: str | None
) -> None:
    """It must be in the range of pyproject.toml; a local build tag is ignored."""

    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["problem"].__globals__, "version", lambda _: found)
    assert script["problem"]() == problem


def test_image_without_vllm_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names a plain Triton image."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["problem"].__globals__, "version", missing)
    assert script["problem"]() == "the base image has no vLLM; <0.33,>=0.32 is needed"
