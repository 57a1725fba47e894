"""Sparse vectors of a Python model and of weights of tokens, on the real core."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_frontend.cli import main
from tests import mock_models
from tests.api.backends import repository
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow  # the models are processes

PAIRS = [[{"index": 1, "value": 1.0}, {"index": 3, "value": 0.5}], [{"index": 2, "value": 0.5}]]
TEXTS = ["one three one", "two four"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("sparse")
    models = folder / "models"
    models.mkdir()
    repository.write_sparse(models, "only")
    repository.write_sparse(models, "both", dense=True)
    repository.write_sparse(models, "mistyped", indices="FP32")
    tasks = ["embed", "token_embed", "token_classify"]
    mock_models.write_with_tokenizer(models, "weighs", tasks=tasks, dimensions=4)
    mock_models.write_with_tokenizer(models, "dense", tasks=["embed"])
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as process:
        process.wait_until_ready()
        yield process


def sparse(gateway: GatewayProcess, **fields: Any) -> httpx.Response:
    return httpx.post(f"{gateway.url}/embed_sparse", json=fields, timeout=120)


def embed(gateway: GatewayProcess, **fields: Any) -> httpx.Response:
    body = {"input": TEXTS, **fields}
    return httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=120)


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    said: dict[str, Any] = response.json()["error"]
    return said


@pytest.mark.parametrize("model", ["only", "both"])
def test_pairs_of_text_embeddings_inference(gateway, model):
    """By ascending index, without zeros."""
    assert sparse(gateway, model=model, inputs=TEXTS).json() == PAIRS
    assert sparse(gateway, model=model, inputs=TEXTS[0]).json() == PAIRS[:1]
    assert sparse(gateway, model=model, inputs="zeros two").json() == PAIRS[1:]
    assert sparse(gateway, model=model, inputs="nothing").json() == [[]]


@pytest.mark.honours("embeddings.output_types")
def test_output_types_select_the_vectors(gateway):
    both = embed(gateway, model="both", output_types=["sparse", "dense"]).json()["data"]

    lists = [
        {"indices": [each["index"] for each in row], "values": [each["value"] for each in row]}
        for row in PAIRS
    ]
    assert both == [
        {
            "object": "embedding",
            "index": at,
            "embedding": vector,
            "sparse_embedding": lists[at],
        }
        for at, vector in enumerate([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    ]
    only = embed(gateway, model="only", output_types=["sparse"]).json()["data"]
    assert [each["sparse_embedding"] for each in only] == lists
    assert "embedding" not in only[0]
    plain = embed(gateway, model="both").json()["data"]
    assert plain == embed(gateway, model="both", output_types=["dense"]).json()["data"]
    assert "sparse_embedding" not in plain[0]


def test_base64_stays_beside_a_sparse_vector(gateway):
    fields: Any = {"model": "both", "encoding_format": "base64"}
    both = embed(gateway, output_types=["dense", "sparse"], **fields).json()["data"]

    expected = [each["embedding"] for each in embed(gateway, **fields).json()["data"]]
    assert [each["embedding"] for each in both] == expected


def test_weights_of_tokens(gateway):
    """The largest of each token; the same token has the same weight in the mock engine."""
    body = {"model": "weighs", "input": [[7, 5, 7]], "task": "token_classify"}
    pooled = httpx.post(f"{gateway.url}/v1/pooling", json=body, timeout=60).json()
    rows = [row[0] for row in pooled["data"][0]["data"]]
    weights = {5: rows[1], 7: rows[0]}

    answer = sparse(gateway, model="weighs", inputs=[[7, 5, 7]]).json()

    expected = {index: value for index, value in weights.items() if value > 0}
    assert {each["index"]: each["value"] for each in answer[0]} == pytest.approx(expected)


def test_long_inputs_are_truncated_on_request(gateway):
    long = [[5] * 5000]
    said = error(sparse(gateway, model="weighs", inputs=long))
    assert (said["code"], said["param"]) == ("context_length_exceeded", "inputs[0]")

    for direction in ("Left", "right"):
        cut = sparse(
            gateway, model="weighs", inputs=long, truncate=True, truncation_direction=direction
        )
        assert cut.status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan", "a value for input[1] that is not finite"),
        ("infinite", "a value for input[1] that is not finite"),
        ("negative", "an index for input[1] outside 0 to 2147483647"),
        ("large", "an index for input[1] outside 0 to 2147483647"),
        ("twice", "1 indices twice for input[1]"),
        ("longer", "0 indices and 1 values for input[1]"),
    ],
)
def test_impossible_vectors_are_an_error(gateway, text, message):
    said = error(sparse(gateway, model="only", inputs=["one", text]), 500)

    assert said["code"] == "malformed_model_output"
    assert message in said["message"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({}, "inputs"),
    "an empty list": ({"inputs": []}, "inputs"),
    "a number": ({"inputs": 5}, "inputs"),
    "too many": ({"inputs": ["a"] * 10_000}, "inputs"),
    "a prompt's name": ({"inputs": "a", "prompt_name": "query"}, "prompt_name"),
    "an unknown direction": ({"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
    "a dense model": ({"inputs": "a", "model": "dense"}, "model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_requests_name_the_field(gateway, case):
    fields, param = REFUSED[case]

    assert error(sparse(gateway, **{"model": "only", **fields}))["param"] == param


@pytest.mark.refuses("embeddings.output_types")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "dense", "output_types": ["sparse"]}, "model"),
        ({"model": "only", "output_types": ["dense"]}, "model"),
        ({"model": "only", "output_types": ["sparse", "dense"]}, "model"),
        ({"model": "both", "output_types": []}, "output_types"),
        ({"model": "both", "output_types": ["colbert"]}, "output_types[0]"),
    ],
)
def test_invalid_output_types_are_refused(gateway, fields, param):
    assert error(embed(gateway, **fields))["param"] == param


def test_check_says_what_is_served(gateway, capsys):
    models = gateway.log.parent / "models"

    main(["check", "--json", f"--model-repository={models}"])

    reports = {each["model"]: each for each in json.loads(capsys.readouterr().out)}
    assert reports["only"]["serves"] == ["embed_sparse"]
    assert reports["both"]["serves"] == ["embeddings", "embed_sparse"]
    assert "its outputs are FP32 and FP32" in reports["mistyped"]["contract"]
