"""`check` reports before a start what the gateway serves after it."""

import json
from typing import Any

import httpx
import pytest

from openai_frontend.cli import main
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def checked(standins_gateway: GatewayProcess, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Model -> its report."""
    repository = standins_gateway.log.parent / "models"
    backends = standins_gateway.log.parent / "backends"
    options = [f"--model-repository={repository}", f"--backend-directory={backends}"]
    assert main(["check", "--json", *options]) == 0
    return {report["model"]: report for report in json.loads(capsys.readouterr().out)}


def listed(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """The models without their adapters, which are in the models' reports."""
    models = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    return [model for model in models if model["parent"] is None]


def test_same_models_are_servable(
    checked: dict[str, Any], standins_gateway: GatewayProcess
) -> None:
    """Steps of other models are reported as steps."""

    assert {name for name, report in checked.items() if not report["ensemble"]} == {
        model["id"] for model in listed(standins_gateway)
    }


def test_capabilities_are_the_same(
    checked: dict[str, Any], standins_gateway: GatewayProcess
) -> None:
    """Kinds of request, context length and tools."""

    for model in listed(standins_gateway):
        report = checked[model["id"]]
        shown = {
            "chat completions": model["capabilities"]["chat"],
            "completions": model["capabilities"]["completions"],
            "embeddings": model["capabilities"]["embeddings"],
        }
        assert {kind for kind, can in shown.items() if can} == set(report["serves"])
        assert report["max_model_len"] == model["max_model_len"]
        if model["capabilities"]["tools"]:
            assert report["tool_calls"] != "none"


def test_reported_fields_are_refused(
    checked: dict[str, Any], standins_gateway: GatewayProcess
) -> None:
    """For each chat model: every reported field is refused by name, and another one is accepted."""

    values = {"min_p": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.0}, "min_tokens": 1}
    for name, report in checked.items():
        if "chat completions" not in report["serves"] or report["ensemble"]:
            continue
        for field, value in values.items():
            answer = httpx.post(
                f"{standins_gateway.url}/v1/chat/completions",
                json={
                    "model": name,
                    "messages": [{"role": "user", "content": "Hello"}],
                    "max_tokens": 2,
                    field: value,
                },
                timeout=60,
            )
            refused = answer.status_code == 400 and answer.json()["error"]["param"] == field
            assert refused == (field in report["refused"]), (name, field, answer.text)


def test_an_ensemble_reports_that_it_splits_characters(checked: dict[str, Any]) -> None:
    """TensorRT-LLM's BLS model detokenizes a stream as a whole; its ensemble does not."""
    reporting = {
        name
        for name, report in checked.items()
        if "tensorrt_llm_bls" in str(report["will_not_work"])
    }

    assert reporting == {"ensemble"}
