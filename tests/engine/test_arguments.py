"""`model.json` as vLLM's engine arguments."""

from pathlib import Path
from typing import Any

import pytest

from openai_frontend.engines.engine import ModelFolder
from openai_frontend.engines.vllm import arguments
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
