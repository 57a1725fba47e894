"""What `init-repo` refuses: overwriting, guessing, and incomplete repositories."""

import json
from pathlib import Path

import pytest

from openai_frontend.cli import main
from tests.medium.cli.test_init_repo import DEMO, init


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./nowhere"], "MODEL: ./nowhere is neither a folder nor a name on a hub"),
        (["~nobody-of-this-name/x"], "MODEL: ~nobody-of-this-name/x is neither a folder nor"),
        (["a/b/c"], "MODEL: a/b/c is neither a folder nor a name on a hub"),
        (["../x"], "MODEL: ../x is neither"),
        (["tests"], "MODEL: tests contains none of config.json"),
        (["org/m", "--kind", "vlm"], "--kind: unknown value 'vlm'; did you mean 'vllm'?"),
        (["org/m", "--name", "../m"], "--name: invalid model name '../m'"),
        (["org/m", "--name", "a/b"], "--name: invalid model name 'a/b'"),
        (["org/m", "--dtype", "int3"], "--dtype: 'int3' is not one of auto, float16"),
        (["org/m", "--max-model-len", "0"], "--max-model-len: must be at least 1, not 0"),
        (["org/m", "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization: must be above"),
        (["org/m", "--kind", "tensorrt_llm"], "--kind: 'tensorrt_llm' is not one of inprocess,"),
        (["org/m", "--instances", "2"], "--instances: only valid for --kind vllm or llmapi"),
        (["org/m", "--no-decoupled"], "--decoupled: only valid for --kind llmapi, not inprocess"),
        (
            ["org/m", "--kind", "vllm", "--instances", "2", "--tensor-parallel-size", "2"],
            "--instances: NVIDIA's vLLM backend has no instances",
        ),
        (["org/m", "--tokenizer", "/nowhere"], "--tokenizer: /nowhere is neither a folder"),
        (["org/m", "--lora", "a"], "--lora: 'a' is not of the form NAME=PATH"),
        (["org/m", "--lora", "../a=tests"], "--lora: invalid model name '../a'"),
        (["org/m", "--lora", "a=/nowhere"], "--lora: /nowhere is not a folder"),
        (["org/m", "--lora", "a=tests"], "--lora a: "),
    ],
)
def test_invalid_option_is_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option, and nothing is written."""

    code = main(["init-repo", *arguments, "--repository", str(tmp_path / "r")])

    output = capsys.readouterr().err
    assert code == 2
    assert output.count("\n") == 1
    assert message in output
    assert not (tmp_path / "r").exists()


def test_existing_model_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--force overwrites the generated files, and no others."""

    init(tmp_path, DEMO, "--name", "m")
    weights, arguments = tmp_path / "m" / "weights", tmp_path / "m" / "1" / "model.json"
    weights.write_text("mine")
    arguments.write_text("mine")

    init(tmp_path, DEMO, "--name", "m", code=2)
    assert capsys.readouterr().err == (
        f"openai-frontend: {tmp_path}/m already exists; --force overwrites its files\n"
    )
    assert arguments.read_text() == "mine"

    init(tmp_path, DEMO, "--name", "m", "--force")
    assert json.loads(arguments.read_text())["model"] == str(DEMO)
    assert weights.read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "1", "config.pbtxt", "weights",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "warned"), [("demo", True), ("here/demo", True), ("org/demo", False)]
)
def test_hub_name_that_looks_like_a_folder_gets_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    warned: bool,
) -> None:
    """A folder is easily mistyped."""

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)

    init(tmp_path / "r", model)

    warning = (
        f"openai-frontend: warning: folder '{model}' does not exist; "
        "using it as a name on Hugging Face's hub\n"
    )
    assert capsys.readouterr().err == (warning if warned else "")


def test_unwritable_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has its name and the reason; the exit code is 1."""

    (tmp_path / "file").write_text("")

    init(tmp_path / "file", DEMO, code=1)

    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "file/weights" in output
    assert "Not a directory" in output


def test_missing_nvidia_files_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on which files to copy where, code 3, and no next command."""

    (tmp_path / "all_models").mkdir()

    init(
        tmp_path / "r",
        *("org/m", "--kind", "llmapi", "--nvidia-models", tmp_path / "all_models"),
        code=3,
    )

    said = capsys.readouterr()
    source = tmp_path / "all_models" / "llmapi" / "tensorrt_llm" / "1"
    assert said.err.count("\n") == 1
    assert f"copy {source} to {tmp_path}/r/m/1" in said.err
    assert "serve" not in said.out


def test_different_tensors_in_nvidias_image_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The image may be older or newer than the tables of this version."""

    folder = tmp_path / "all_models" / "llmapi" / "tensorrt_llm"
    (folder / "1").mkdir(parents=True)
    for name in ("model.py", "helpers.py"):
        (folder / "1" / name).write_text("")
    (folder / "config.pbtxt").write_text(
        'max_batch_size: ${size} input [{ name: "text_input" }, { name: "new" }]'
    )

    init(
        tmp_path / "r",
        *("org/m", "--kind", "llmapi", "--nvidia-models", tmp_path / "all_models"),
    )

    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert notes[0].startswith(f"note: {folder}/config.pbtxt differs in input image_url, lora_")
    assert ", new, " in notes[0]
