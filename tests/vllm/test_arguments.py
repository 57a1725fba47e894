"""`model.json` as vLLM's engine arguments."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.cli import cached_repository, flag_hints, main
from openai_frontend.cli.check import load_checks
from openai_frontend.config.loader import InvalidSettings, load
from openai_frontend.engines.engine import ModelSpec
from openai_frontend.engines.vllm import arguments
from tests import hugging_face_cache, mock_models
from tests.gateway_process import ROOT
from tests.unit.prompting import tiny_tokenizer

pytestmark = pytest.mark.engine

DEMO = ROOT / "model_repository" / "demo"


def read(**values: Any) -> Any:
    model = ModelSpec(
        name="demo",
        version=1,
        folder=DEMO,
        parameters={},
        arguments={"model": "./weights", **values},
    )
    return arguments.engine_arguments(model)


@pytest.mark.parametrize(
    ("value", "meant"), [("true", True), ("false", False), (True, True), (False, False)]
)
def test_switches_may_be_words(value: object, meant: bool) -> None:
    """NVIDIA's tutorial of LoRA writes \"enable_lora\": \"true\"; a word for no is no."""
    assert read(enable_lora=value).enable_lora is meant


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_an_absolute_path_that_is_not_there_is_named(name: str) -> None:
    """vLLM would take it for a name on the hub."""
    with pytest.raises(ValueError, match=rf"model\.json: {name}: /nope does not exist$"):
        read(**{name: "/nope"})


def test_words_elsewhere_are_text() -> None:
    """Only a switch is one."""
    assert read(quantization="true").quantization == "true"


def test_the_models_folder_is_found() -> None:
    """It lies beside model.json, whatever the process' own folder."""
    assert Path(read().model) == DEMO / "1" / "weights"


def test_log_in_the_gateways_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's processes read the gateway's file of the log, unless the user has one for vLLM."""
    monkeypatch.delenv("VLLM_LOGGING_CONFIG_PATH", raising=False)
    monkeypatch.setenv(arguments.LOG_CONFIG, "/ours.json")
    assert read().logging_config.pylogging_config_file == "/ours.json"

    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "/theirs.json")
    assert read().logging_config is None


@pytest.mark.parametrize("revision", ["main", "v2"])
def test_a_hub_names_tokenizer_is_the_snapshot_of_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """The gateway reads the same files as the engine, config.json too."""
    weights = DEMO / "1" / "weights"
    snapshot = hugging_face_cache.write(tmp_path, "acme/tiny", weights, revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = SimpleNamespace(tokenizer="acme/tiny", tokenizer_revision=revision)
    assert arguments.tokenizer_folder(config) == str(snapshot)


def test_a_tokenizers_folder_stays_as_it_is(tmp_path: Path) -> None:
    """It is on this machine."""
    config = SimpleNamespace(tokenizer=str(tmp_path), tokenizer_revision=None)
    assert arguments.tokenizer_folder(config) == str(tmp_path)


def test_an_unknown_engine_argument_of_serve_is_named_with_one_that_is_near() -> None:
    """vLLM's own list decides, before the server listens."""
    settings = load(flags={"engine_arg": ["max_modl_len=512"]})
    with pytest.raises(InvalidSettings, match=r"'max_modl_len'; did you mean 'max_model_len'\?"):
        cached_repository.repository("org/m", settings)


def test_every_engine_argument_that_serve_advises_exists() -> None:
    """The table of other servers' flags follows vLLM."""
    advised = {*flag_hints._ENGINE_ARGUMENTS.values(), *flag_hints._SAME_ARGUMENTS}
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert advised - {field.name for field in dataclasses.fields(AsyncEngineArgs)} == set()


def test_check_names_an_unknown_engine_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose model.json has one is not servable; the problem guesses what was meant."""
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    version = mock_models.write(tmp_path, "m", config=config, model="./w", max_modl_len=512)
    tiny_tokenizer.write(version / "w")

    code = main(["check", "m", "--model-repository", str(tmp_path), "--json"])
    assert code == 1
    problem = json.loads(capsys.readouterr().out)["problem"]
    assert problem == (
        "model.json: vLLM has no engine argument 'max_modl_len'; did you mean 'max_model_len'?"
    )


def test_the_arguments_that_check_takes_as_known_exist() -> None:
    """`check` does not ask vLLM about them."""
    arguments.check_names(load_checks._KNOWN_ARGUMENTS)


@pytest.mark.parametrize(
    ("version", "tested"), [("0.32.0+cpu", True), ("0.32.4", True), ("0.33.0", False)]
)
def test_a_patch_release_is_tested(
    monkeypatch: pytest.MonkeyPatch, version: str, tested: bool
) -> None:
    """The minor version decides."""
    monkeypatch.setattr("vllm.__version__", version)

    assert arguments.tested_version() == tested


@pytest.mark.parametrize(
    ("given", "backend"), [({}, "xgrammar"), ({"backend": "guidance"}, "guidance")]
)
def test_an_untested_version_has_one_grammar_engine(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], backend: str
) -> None:
    """vLLM itself keeps the engine of the first request; the choice of model.json holds."""
    monkeypatch.setattr(arguments, "TESTED_VERSIONS", ())

    config = read(structured_outputs_config=given).structured_outputs_config
    assert config["backend"] == backend
