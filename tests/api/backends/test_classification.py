"""Classifiers of the Python backend, on the real core: their files need no options."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_frontend.cli import main
from tests.api.backends import repository
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow  # the models are processes

BATCHING = ("batched", "rows")
TEXTS = ["good good bad odd", "bad", "odd odd good good"]
ROWS = [
    ("good", [0.5, 0.25, 0.25]),
    ("bad", [0.0, 1.0, 0.0]),
    ("good", [0.5, 0.0, 0.5]),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("classifiers")
    models = folder / "models"
    models.mkdir()
    write = repository.write_classifier
    write(models, "batched", max_batch_size=16)
    write(models, "rows", texts=-1, scores=[-1, 3])
    write(models, "alone")
    write(models, "open", max_batch_size=16, scores=[-1])
    write(models, "miscounted", scores=[4])
    write(models, "unlabelled", labels=None)
    write(models, "named", labels=None, max_batch_size=16)
    (models / "named" / "openai_frontend.yaml").write_text("labels: [ja, nein, vielleicht]\n")
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as process:
        process.wait_until_ready()
        yield process


def classify(gateway: GatewayProcess, path: str = "/v1/classify", **fields: Any) -> httpx.Response:
    return httpx.post(f"{gateway.url}{path}", json=fields, timeout=60)


def executions(gateway: GatewayProcess, model: str) -> float:
    """Requests that the core has run in the model."""
    metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    pattern = rf'^nv_inference_request_success\{{[^}}]*model="{model}"[^}}]*\}} (\S+)'
    return sum(map(float, re.findall(pattern, metrics, re.MULTILINE)))


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
@pytest.mark.parametrize("model", ["batched", "rows", "alone"])
def test_each_text_has_its_label_and_scores(gateway, model, path):
    answer = classify(gateway, path, model=model, input=TEXTS).json()

    assert answer.pop("id").startswith("classify-")
    assert answer.pop("created") > 0
    assert answer == {
        "object": "list",
        "model": model,
        "data": [
            {"index": at, "label": label, "probs": probs, "num_classes": 3}
            for at, (label, probs) in enumerate(ROWS)
        ],
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


@pytest.mark.parametrize(("model", "expected"), [("batched", 1), ("rows", 1), ("alone", 3)])
def test_batch_is_one_request_if_the_model_allows(gateway, model, expected):
    before = executions(gateway, model)

    classify(gateway, model=model, input=TEXTS).raise_for_status()

    assert executions(gateway, model) - before == expected


def test_batches_are_as_large_as_the_model_allows(gateway):
    before = executions(gateway, "batched")

    answer = classify(gateway, model="batched", input=["good", "bad"] * 20).json()

    assert [each["label"] for each in answer["data"]] == ["good", "bad"] * 20
    assert executions(gateway, "batched") - before == 3  # of 16, 16 and 8


@pytest.mark.parametrize("model", BATCHING)
def test_more_rows_than_texts_is_an_error(gateway, model):
    answer = classify(gateway, model=model, input=["good", "more rows"])

    assert answer.status_code == 500
    assert "3 x 3 scores for 2 inputs" in answer.json()["error"]["message"]


def test_more_scores_than_labels_is_an_error(gateway):
    answer = classify(gateway, model="open", input=["more scores"])

    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message == "The model returned 4 scores for input[0], but has 3 labels."


def test_scores_that_are_not_finite_are_an_error(gateway):
    answer = classify(gateway, model="batched", input=["good", "nan"])

    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message == "The model returned a score for input[1] that is not finite."


def test_labels_of_the_options(gateway):
    answer = classify(gateway, model="named", input="bad").json()

    assert answer["data"][0]["label"] == "nein"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("miscounted", "it has 3 labels for the 4 scores of its output 'SENTIMENT'"),
        ("unlabelled", "set `contract: embeddings`, or give it labels by `label_filename`"),
    ],
)
def test_model_without_fitting_labels_says_why(gateway, model, reason):
    answer = classify(gateway, model=model, input="a")

    assert answer.status_code == 404
    assert reason in answer.json()["error"]["message"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "token ids": ({"input": [1, 2]}, "input"),
    "a conversation": ({"messages": [{"role": "user", "content": "hi"}]}, "model"),
    "no activation": ({"input": "a", "use_activation": False}, "use_activation"),
    "truncation": ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    "no input": ({}, "input"),
}


@pytest.mark.refuses("classify.use_activation", "classify.truncate_prompt_tokens")
@pytest.mark.parametrize("case", REFUSED)
def test_what_the_model_cannot_do_is_refused(gateway, case):
    fields, param = REFUSED[case]

    answer = classify(gateway, model="batched", **fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_classifier_does_not_embed(gateway):
    body = {"model": "batched", "input": "a"}
    answer = httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=60)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_model")


def test_check_says_which_route_and_why(gateway, capsys):
    models = gateway.log.parent / "models"

    main(["check", "--json", f"--model-repository={models}"])

    reports = {each["model"]: each for each in json.loads(capsys.readouterr().out)}
    assert reports["batched"]["serves"] == ["classify"]
    assert reports["batched"]["contract"] == (
        "classification. It has labels, so its vector of FP32 numbers is their scores."
    )
    assert "4 scores" in reports["miscounted"]["contract"]
    assert "may be an embedding" in reports["unlabelled"]["contract"]
