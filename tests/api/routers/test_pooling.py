"""/v1/pooling and /pooling in vLLM's format, from the gateway as a process with mock models."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess

ALL = ["generate", "embed", "classify", "token_embed", "token_classify"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("pooling")
    models = folder / "models"
    write = mock_models.write_with_tokenizer
    write(models, "all", tasks=ALL, labels=["no", "yes", "odd"], dimensions=4)
    write(models, "tokens", tasks=["token_embed"], dimensions=4)
    write(models, "wide", tasks=["token_embed"], dimensions=2000, max_model_len=10_000)
    write(models, "writes", tasks=["generate"])
    with GatewayProcess(models, folder / "log") as process:
        process.wait_until_ready()
        yield process


def pool(gateway: GatewayProcess, path: str = "/v1/pooling", **fields: Any) -> httpx.Response:
    body = {"model": "all", "input": "hello", **fields}
    return httpx.post(f"{gateway.url}{path}", json=body, timeout=120)


def data(gateway: GatewayProcess, **fields: Any) -> list[Any]:
    response = pool(gateway, **fields)
    assert response.status_code == 200, response.text
    return [each["data"] for each in response.json()["data"]]


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    said: dict[str, Any] = response.json()["error"]
    return said


@pytest.mark.parametrize("path", ["/v1/pooling", "/pooling"])
def test_vector_of_each_token(gateway, path):
    answer = pool(gateway, path, input=[[5, 6, 7], [6]], task="token_embed").json()

    assert answer.pop("id").startswith("pool-")
    assert answer.pop("created") > 0
    first, second = answer.pop("data")
    assert answer == {
        "object": "list",
        "model": "all",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert [first["index"], second["index"]] == [0, 1]
    assert first["object"] == "pooling"
    assert np.asarray(first["data"]).shape == (3, 4)
    assert first["data"][1] == second["data"][0]  # the mock's vectors depend on the token alone


def test_base64_has_the_same_numbers(gateway):
    """In blocks, of which each is a whole number of three vectors."""
    fields: Any = {"model": "wide", "input": [list(range(50))], "task": "token_embed"}
    [numbers] = data(gateway, **fields)
    [encoded] = data(gateway, encoding_format="base64", **fields)

    vectors = np.frombuffer(base64.b64decode(encoded, validate=True), "<f4").reshape(50, 2000)
    assert np.array_equal(vectors, np.asarray(numbers, "<f4"))


def test_first_task_of_the_model_is_the_default(gateway):
    assert data(gateway) == data(gateway, task="embed")
    assert data(gateway, model="tokens") == data(gateway, task="token_embed")


def test_vectors_and_scores_equal_those_of_their_routes(gateway):
    def of(path: str, name: str) -> Any:
        body = {"model": "all", "input": "hello"}
        answer = httpx.post(f"{gateway.url}{path}", json=body, timeout=60).json()
        return [each[name] for each in answer["data"]]

    assert data(gateway, task="embed") == of("/v1/embeddings", "embedding")
    assert data(gateway, task="classify") == of("/v1/classify", "probs")


def test_conversation(gateway):
    body = {"model": "all", "messages": [{"role": "user", "content": "hi"}], "task": "token_embed"}
    answer = httpx.post(f"{gateway.url}/v1/pooling", json=body, timeout=60).json()

    assert len(answer["data"][0]["data"]) == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("task", ["embed", "token_embed", "classify"])
def test_input_is_truncated_to_the_context(gateway, task):
    """By -1, as on every route of pooling models."""
    long = [[5] * 5000]
    assert error(pool(gateway, input=long, task=task))["code"] == "context_length_exceeded"

    answer = pool(gateway, input=long, task=task, truncate_prompt_tokens=-1).json()

    assert answer["usage"]["prompt_tokens"] == 4096


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a task of another model": (
        {"model": "tokens", "task": "embed"},
        "task",
        "unsupported_value",
    ),
    "an unknown task": ({"task": "encode"}, "task", "invalid_value"),
    "no pooling model": ({"model": "writes"}, "model", "unsupported_model"),
    "no input": ({"input": None}, "input", "missing_required_parameter"),
    "bytes": ({"encoding_format": "bytes"}, "encoding_format", "invalid_value"),
    "another type": ({"embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
    "big-endian": ({"endianness": "big"}, "endianness", "unsupported_parameter"),
    "a plug-in": ({"data": {"x": 1}}, "data", "unsupported_parameter"),
    "padding": ({"padding": "max_length"}, "padding", "unsupported_parameter"),
    "short vectors of tokens": (
        {"task": "token_embed", "dimensions": 2},
        "dimensions",
        "unsupported_parameter",
    ),
    "activation of vectors": (
        {"task": "embed", "use_activation": False},
        "use_activation",
        "unsupported_parameter",
    ),
    "too many inputs": ({"input": ["a"] * 10_000}, "input", "array_above_max_length"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(gateway, case):
    fields, param, code = REFUSED[case]

    said = error(pool(gateway, **fields))

    assert (said["param"], said["code"]) == (param, code), said


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"dimensions": 4}])
def test_embeddings_of_a_model_of_token_vectors(gateway, options):
    """A list of vectors for each input, which OpenAI's client returns as it is although it asks for
    base64 by default.
    """
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="tokens", input=[[5, 6, 7], [6]], **options)
        card = client.models.retrieve("tokens")

    vectors: Any = [each.embedding for each in answer.data]
    assert vectors == data(gateway, model="tokens", input=[[5, 6, 7], [6]])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4)
    able = [name for name, is_able in card.model_dump()["capabilities"].items() if is_able]
    assert able == ["token_embeddings"]


EMBEDDINGS_REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "shorter vectors": (
        {"model": "tokens", "dimensions": 2},
        "dimensions",
        "unsupported_parameter",
    ),
    "sparse vectors": (
        {"model": "tokens", "output_types": ["sparse"]},
        "model",
        "unsupported_model",
    ),
    "too many numbers": (
        {"model": "wide", "input": [[5] * 5000]},
        "input",
        "max_tokens_per_request",
    ),
    "no vectors": ({"model": "writes"}, "model", "unsupported_model"),
}


@pytest.mark.parametrize("case", EMBEDDINGS_REFUSED)
def test_embeddings_that_a_model_does_not_have(gateway, case):
    fields, param, code = EMBEDDINGS_REFUSED[case]
    body = {"input": "a", **fields}

    said = error(httpx.post(f"{gateway.url}/v1/embeddings", json=body, timeout=60))

    assert (said["param"], said["code"]) == (param, code), said


def test_too_many_numbers_are_refused_before_the_model_runs(gateway):
    said = error(pool(gateway, model="wide", input=[[5] * 5000], task="token_embed"))

    assert (said["param"], said["code"]) == ("input", "max_tokens_per_request")
    assert "10000000 numbers" in said["message"]


def test_large_result_leaves_the_event_loop_to_others(gateway):
    """8 million numbers take a second as JSON, in pieces of 1 ms: the watchdog reports no block."""
    body = {"model": "wide", "input": [[5] * 2000] * 2, "task": "token_embed"}
    with httpx.stream("POST", f"{gateway.url}/v1/pooling", json=body, timeout=120) as response:
        assert response.status_code == 200
        size = sum(len(piece) for piece in response.iter_bytes())

    assert size > 60_000_000
    assert "event loop blocked" not in gateway.output()
