"""The set-up in NVIDIA's images keeps their packages, and refuses a vLLM out of range."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from scripts.setup import in_image, lock

ROOT = Path(__file__).parents[3]
EXTRA = lock.read_project(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["vllm"]
[RANGE] = [each.specifier for each in map(Requirement, EXTRA) if each.name == "vllm"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0.32.0", None),
        ("0.32.0+092c4842.nv26.11", None),
        ("0.19.0", f"this image has vLLM 0.19.0; vllm{RANGE} is needed: choose another release"),
        ("0.99.0", f"this image has vLLM 0.99.0; vllm{RANGE} is needed: choose another release"),
        (None, f"this image has no vLLM; vllm{RANGE} is needed: choose another base image"),
    ],
)
def test_vllm_version_is_checked(monkeypatch, capsys, tmp_path, found, said):
    """It must be in the range of pyproject.toml; a build's local version is ignored."""
    monkeypatch.setattr(in_image, "version_of", lambda package: found)
    monkeypatch.setattr(in_image, "install", lambda folder, also: [])

    code = in_image.main(["--vllm", str(tmp_path)])

    error = capsys.readouterr().err
    assert code == (1 if said else 0)
    assert error.startswith(f"setup: {said}" if said else "")
    assert error.count("\n") == (1 if said else 0)


def test_vllm_itself_is_not_installed():
    """pip gets the rest of the extra only."""
    assert in_image.beside_vllm() == [text for text in EXTRA if Requirement(text).name != "vllm"]
    assert in_image.beside_vllm()


def test_gateway_is_installed_with_grpc(monkeypatch, tmp_path):
    """pip gets the wheel with the extra, whose packages the image need not have."""
    commands = []

    def run(command, **options):
        commands.append([str(each) for each in command])
        if "wheel" in command:
            [folder] = [each.partition("=")[2] for each in command if "--wheel-dir" in each]
            Path(folder, "openai_frontend-0.1.0.whl").touch()
        return SimpleNamespace(returncode=0, stdout="")

    monkeypatch.setattr("subprocess.run", run)

    assert in_image.install(tmp_path, []) == []
    [gateway] = [each for command in commands for each in command if ".whl" in each]
    assert gateway.endswith("openai_frontend-0.1.0.whl[grpc]")


def test_new_clashes_fail_the_build(monkeypatch, capsys, tmp_path):
    """What the installation broke is named."""
    line = "vllm 0.24.0 requires transformers<5.7, but you have transformers 5.19.0."
    monkeypatch.setattr(in_image, "install", lambda folder, also: [line])

    assert in_image.main([str(tmp_path)]) == 1
    assert line in capsys.readouterr().err


def test_requirements_of_the_image_limit_what_pip_chooses(monkeypatch):
    """pip's newest transformers could be one that the image's vLLM does not take."""
    requires = {
        "vllm": [
            "fastapi[standard]<0.137,>=0.133",
            "torch==2.13.0",
            "pandas; extra == 'bench'",
            "numpy",
            "tomli>=2; python_version < '3'",
        ],
        "torch": None,
    }
    monkeypatch.setattr(in_image, "kept", lambda: {"torch": "2.12.0a0+nv", "vllm": "0.27.1+nv"})
    monkeypatch.setattr("importlib.metadata.requires", requires.get)

    assert in_image.constraints() == [
        "torch==2.12.0a0+nv",
        "vllm==0.27.1+nv",
        "fastapi<0.137,>=0.133",
    ]
