"""Builds of torchvision that do not fit the installed torch."""

from pathlib import Path

import pytest

from openai_frontend.engines.vllm import arguments
from openai_frontend.engines.vllm.processes import torch_builds


def install(folder: Path, name: str, version: str) -> None:
    """A stand-in with the metadata of a distribution, and a module."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / f"{name}.py").write_text("raise RuntimeError('operator does not exist')")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages here come before those of the environment."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return tmp_path


def test_cuda_build_beside_a_cpu_torch_is_refused_before_vllm_is_imported(installed: Path) -> None:
    """One line has all versions and the command that helps."""
    for name, version in (("torch", "9.1.0+cpu"), ("torchvision", "0.9"), ("torchaudio", "9.1")):
        install(installed, name, version)

    with pytest.raises(ValueError, match="different builds") as refused:
        arguments.set_environment()

    assert str(refused.value) == (
        "torch 9.1.0+cpu and torchvision 0.9 and torchaudio 9.1 are different builds, with which"
        " vLLM cannot be imported. Run: pip uninstall -y torchvision torchaudio. If a model needs"
        " them, install their builds from https://download.pytorch.org/whl/cpu"
    )


@pytest.mark.parametrize(
    ("torch", "torchvision", "fits"),
    [
        ("9.1+cpu", "0.9+cpu", True),
        ("9.1", "0.9", True),
        ("9.1+cu128", "0.9+cu126", True),
        ("9.1+cu128", "0.9", True),  # PyPI's, whose CUDA is not known
        ("9.1", "0.9+cpu", False),
        ("9.1+cu128", "0.9+cu130", False),
        ("9.1+cu128", "0.9+cpu", False),
    ],
)
def test_builds_fit_by_their_tags(
    installed: Path, torch: str, torchvision: str, *, fits: bool
) -> None:
    """A version without a tag is PyPI's build for CUDA."""
    install(installed, "torch", torch)
    install(installed, "torchvision", torchvision)

    if fits:
        torch_builds.check()
    else:
        with pytest.raises(ValueError, match=r"pip uninstall -y torchvision\."):
            torch_builds.check()


def test_untagged_build_of_another_processor_is_accepted(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyPI has builds for CPUs there."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    install(installed, "torch", "9.1+cpu")
    install(installed, "torchvision", "0.9")

    torch_builds.check()


def test_metadata_without_a_module_is_accepted(installed: Path) -> None:
    """As the set-up installs for packages that nothing may import."""
    for name, version in (("torch", "9.1+cpu"), ("torchvision", "0.9+standin")):
        install(installed, name, version)
    (installed / "torchvision.py").unlink()

    torch_builds.check()
