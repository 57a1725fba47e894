"""What `check` reports of whole repositories."""

import errno
import json
from pathlib import Path

import pytest

from openai_frontend.cli import main
from tests import mock_models
from tests.fast.prompting import tiny_tokenizer
from tests.medium.cli.test_check import HERMES

TEXT = "data_type: TYPE_STRING dims: [1]"
ENSEMBLE = f"""
platform: "ensemble"
input [ {{ name: "text_input" {TEXT} }} ]
output [ {{ name: "text_output" {TEXT} }} ]
ensemble_scheduling {{ step [ {{
  model_name: "inner" model_version: -1
  input_map {{ key: "text_input" value: "text_input" }}
  output_map {{ key: "text_output" value: "text_output" }}
}} ] }}
"""


def lines(capsys: pytest.CaptureFixture[str], *repositories: Path, code: int = 0) -> list[str]:
    """The model, its state and the rest of each line, as words."""
    options = [f"--model-repository={repository}" for repository in repositories]
    assert main(["check", *options]) == code
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def lock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nobody may read the folders of this name. Permissions would not keep root out."""
    is_file = Path.is_file

    def checked(path: Path) -> bool:
        if name in path.parent.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", checked)


def alias(repository: Path, name: str, alias: str) -> None:
    (repository / name / "openai_frontend.yaml").write_text(f"aliases: [{alias}]")


def test_one_line_per_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the endpoints and aliases, or the reason why it cannot be served."""

    mock_models.write_with_tokenizer(tmp_path, "chat", tasks=["generate"])
    mock_models.write(tmp_path, "broken", config="{")
    mock_models.write(tmp_path, "vectors", tasks=["embed"])
    (tmp_path / "empty").mkdir()
    alias(tmp_path, "chat", "org/chat")

    assert lines(capsys, tmp_path, code=1) == [
        f"broken not servable {tmp_path}/broken/config.pbtxt: line 1, column 1: "
        "Expected identifier or number, got {.",
        "chat servable chat completions, completions; also as org/chat",
        "empty not servable it has neither a config.pbtxt nor a version folder",
        "vectors servable embeddings",
    ]


def test_tensor_models_and_models_without_their_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KServe's protocol serves the first kind, so that a deployment goes on; nothing the second."""

    number = "data_type: TYPE_FP32 dims: [1]"
    tensors = f'input {{ name: "a" {number} }} output {{ name: "b" {number} }}'
    version = mock_models.write(tmp_path, "double", config=f'backend: "python" {tensors}')
    (version / "model.py").write_text("")
    assert lines(capsys, tmp_path) == ["double servable /v2 only"]

    mock_models.write(tmp_path, "sample", config='backend: "vllm"')
    assert lines(capsys, tmp_path, code=1)[1].startswith(
        "sample not servable backend 'vllm' is not installed in "
    )


def test_folders_that_are_not_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden folders and the file system's are left out; one that cannot be read is reported."""

    mock_models.write(tmp_path, "vectors", tasks=["embed"])
    for name in (".git", ".snapshot", "lost+found"):
        (tmp_path / name).mkdir()
    assert lines(capsys, tmp_path) == ["vectors servable embeddings"]

    (tmp_path / "locked").mkdir()
    lock(monkeypatch, "locked")
    assert lines(capsys, tmp_path, code=1)[0].startswith("locked not servable")
    assert main(["check", "locked", f"--model-repository={tmp_path}"]) == 1
    assert "Permission denied" in capsys.readouterr().out


def test_ensembles_and_their_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step is not served unless it is exposed; an ensemble needs all of its steps."""

    mock_models.write(tmp_path, "whole", config=ENSEMBLE)
    assert lines(capsys, tmp_path, code=1) == [
        "whole not servable its ensemble step 'inner' does not exist"
    ]

    mock_models.write(tmp_path, "inner", tasks=["generate"])
    assert lines(capsys, tmp_path) == ["inner step of whole", "whole servable completions"]

    version = tmp_path / "inner" / "1"
    version.rename(tmp_path / "inner" / "one")
    assert lines(capsys, tmp_path, code=1)[1] == (
        "whole not servable its ensemble step 'inner' cannot be served"
    )
    (tmp_path / "inner" / "one").rename(version)

    (tmp_path / "inner" / "openai_frontend.yaml").write_text("expose: true")
    assert lines(capsys, tmp_path)[0] == "inner servable completions"


@pytest.mark.parametrize("other", ["other", "other2"])
def test_alias_of_two_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    """An alias must differ from every other model's name and aliases."""

    mock_models.write(tmp_path, "m", tasks=["generate"])
    mock_models.write(tmp_path, other, tasks=["generate"])
    alias(tmp_path, "m", "other")
    if other != "other":
        alias(tmp_path, other, "other")

    assert "m not servable its alias 'other' belongs to another model too" in lines(
        capsys, tmp_path, code=1
    )


def test_same_name_in_two_repositories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of the two models can be served."""

    for repository in ("a", "b"):
        mock_models.write(tmp_path / repository, "m", tasks=["generate"])

    assert (
        lines(capsys, tmp_path / "a", tmp_path / "b", code=1)
        == ["m not servable another model has the same name"] * 2
    )


def test_empty_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no models; a missing repository is an invalid setting."""

    assert lines(capsys, tmp_path, code=1) == [f"{tmp_path}: no models"]
    assert lines(capsys, tmp_path / "nowhere", code=2) == []


def test_json_has_complete_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list with the report of each model."""

    tokenizer = tiny_tokenizer.write(tmp_path / "tokenizer", chat_template=HERMES)
    mock_models.write(tmp_path / "r", "m", config='backend: "vllm"', model=str(tokenizer))
    (tmp_path / "backends" / "vllm").mkdir(parents=True)

    options = [f"--model-repository={tmp_path}/r", f"--backend-directory={tmp_path}/backends"]
    assert main(["check", "--json", *options]) == 0

    [found] = json.loads(capsys.readouterr().out)
    assert (found["model"], found["tool_calls"]) == ("m", "hermes")
