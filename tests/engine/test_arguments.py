"""`model.json` as vLLM's engine arguments."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.cli import cached_repository, foreign_flags
from openai_frontend.engines.engine import ModelFolder
from openai_frontend.engines.vllm import arguments
from openai_frontend.setting_sources import InvalidSettings, load
from tests import hugging_face_cache
from tests.gateway_process import ROOT

pytestmark = pytest.mark.engine

DEMO = ROOT / "model_repository" / "demo"


def read(**values: Any) -> Any:
    model = ModelFolder(
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
    with pytest.raises(ValueError, match=rf"model\.json: {name}: there is no /nope$"):
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
    advised = {*foreign_flags._ENGINE_ARGUMENTS.values(), *foreign_flags._SAME_ARGUMENTS}
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert advised - {field.name for field in dataclasses.fields(AsyncEngineArgs)} == set()
