"""The demo classifier through the API, on the real core: a request loads it."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from openai_frontend.cli import main
from openai_frontend.config.model_options import FILE
from tests import mock_models
from tests.api.backends.repository import write_classifier
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.slow  # the models are processes

MODEL = "demo-classifier"
TEXTS = ["How can I kill a hanging process?", "You are such a moron.", "I will stab your brother."]
FLAGGED = [set(), {"harassment"}, {"violence"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("demo-classifier")
    models = folder / "models"
    shutil.copytree(ROOT / "model_repository" / MODEL, models / MODEL)
    write_classifier(models, "plain")
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def card(gateway: GatewayProcess) -> Any:
    return httpx.get(f"{gateway.url}/v1/models/{MODEL}", timeout=60).json()


def flagged(result: Any) -> set[str]:
    return {name for name, flag in result.categories.to_dict().items() if flag}


def test_first_request_loads_it(gateway):
    """Its card tells before what it can do."""
    before = card(gateway)
    body = {"model": MODEL, "input": TEXTS}
    answer = httpx.post(f"{gateway.url}/v1/classify", json=body, timeout=600).json()
    after = card(gateway)

    assert [each["label"] for each in answer["data"]] == ["harmless", "insult", "violence"]
    assert (before["status"]["value"], after["status"]["value"]) == ("unloaded", "loaded")
    assert before["capabilities"] == after["capabilities"]
    assert after["capabilities"]["moderation"] is True


@pytest.mark.parametrize("named", [{}, {"model": "omni-moderation-latest"}, {"model": MODEL}])
def test_client_moderates(client, named):
    """The only model with a mapping may be left out."""
    answer = client.moderations.create(input=TEXTS, **named)

    assert list(map(flagged, answer.results)) == FLAGGED
    assert [each.flagged for each in answer.results] == list(map(bool, FLAGGED))
    assert answer.results[2].category_scores.violence > 0.9
    assert answer.model == named.get("model", MODEL)


async def test_asynchronous_client_moderates_parts_as_one_input(gateway):
    parts: Any = [{"type": "text", "text": each} for each in TEXTS]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        answer = await client.moderations.create(input=parts)

    assert list(map(flagged, answer.results)) == [{"harassment", "violence"}]


def test_inputs_are_one_request_to_the_core(gateway, client):
    def count() -> float:
        metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
        name = f'nv_inference_request_success{{model="{MODEL}"'
        return sum(float(line.split()[-1]) for line in metrics.splitlines() if name in line)

    client.moderations.create(input="hi")
    before = count()
    client.moderations.create(input=TEXTS * 20)

    assert count() - before == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "input"),
    "null": ({"input": None}, "input"),
    "a number": ({"input": 1}, "input"),
    "no inputs": ({"input": []}, "input"),
    "token ids": ({"input": [1, 2]}, "input[0]"),
    "mixed": ({"input": ["a", {"type": "text", "text": "b"}]}, "input[1]"),
    "unknown part": ({"input": [{"type": "video"}]}, "input[0].type"),
    "empty part": ({"input": [{"type": "text"}]}, "input[0].text"),
    "an image": (
        {"input": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
        "input[0].type",
    ),
    "too many": ({"input": ["a"] * 10_000}, "input"),
    "no mapping": ({"model": "plain", "input": "a"}, "model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_refused_by_name(gateway, case):
    body, param = REFUSED[case]

    answer = httpx.post(f"{gateway.url}/v1/moderations", json=body, timeout=60)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_check_names_a_mapping_that_does_not_fit(tmp_path, capsys):
    write_classifier(tmp_path, "m", max_batch_size=8)
    (tmp_path / "m" / FILE).write_text("moderation: {labels: {goood: hate}}\n")
    mock_models.write_with_tokenizer(tmp_path, "talks")
    (tmp_path / "talks" / FILE).write_text("moderation: {labels: {good: hate}}\n")

    assert main(["check", f"--model-repository={tmp_path}"]) == 1
    reported = capsys.readouterr().out
    assert "a label 'goood' that the model does not have; did you mean 'good'?" in reported
    assert "its option `moderation` needs a classifier with labels" in reported


def test_check_lists_the_route(capsys):
    main(["check", "--json", str(ROOT / "model_repository" / MODEL)])

    assert json.loads(capsys.readouterr().out)["serves"] == ["classify", "moderations"]


def test_lone_surrogate_is_refused(gateway):
    body = b'{"input": "\\ud800"}'
    headers = {"content-type": "application/json"}

    answer = httpx.post(f"{gateway.url}/v1/moderations", content=body, headers=headers, timeout=60)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "json_invalid")
