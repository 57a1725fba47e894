"""The rerank and score endpoints, in the forms of Jina, vLLM, Cohere and TEI."""

from typing import Any

import httpx
import pytest

from tests.medium.routers.conftest import World
from tests.medium.routers.test_embeddings import pooling_model

DOCUMENTS = ["x", "ab", "a"]  # contain 0, 2 and 1 letters of the query "ab"


async def post(world: World, path: str, **body: Any) -> httpx.Response:
    return await world.client.post(path, json=body)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_rerank_returns_documents_and_usage(world, path):
    """In the format of Jina and vLLM."""
    pooling_model(world, tasks=["score"])

    response = await post(world, path, model="fake", query="ab", documents=DOCUMENTS, top_n=2)

    answer = response.json()
    assert answer.pop("id").startswith("rerank-")
    assert answer == {
        "model": "fake",
        "usage": {"prompt_tokens": 10, "total_tokens": 10},
        "results": [
            {"index": 1, "relevance_score": 2.0, "document": {"text": "ab"}},
            {"index": 2, "relevance_score": 1.0, "document": {"text": "a"}},
        ],
    }


async def test_v2_rerank_uses_the_cohere_format(world):
    """aiperf sends this request."""
    pooling_model(world, tasks=["score"])

    response = await post(world, "/v2/rerank", model="fake", query="ab", documents=DOCUMENTS)

    answer = response.json()
    assert answer["results"][0] == {"index": 1, "relevance_score": 2.0}
    assert answer["meta"] == {
        "api_version": {"version": "2"},
        "tokens": {"input_tokens": 10, "output_tokens": 0},
    }


async def test_rerank_of_texts_uses_the_tei_format(world):
    """aiperf sends this request: no model, `texts`. The response is a bare list."""
    pooling_model(world, tasks=["score"])

    response = await post(world, "/rerank", query="ab", texts=DOCUMENTS)

    assert response.json() == [
        {"index": 1, "score": 2.0},
        {"index": 2, "score": 1.0},
        {"index": 0, "score": 0.0},
    ]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_scores_are_in_the_order_of_the_pairs(world, path):
    """In vLLM's format."""
    pooling_model(world, tasks=["score"])

    response = await post(world, path, model="fake", text_1="ab", text_2=DOCUMENTS)

    answer = response.json()
    assert (answer["object"], [each["score"] for each in answer["data"]]) == ("list", [0, 2, 1])
    assert answer["data"][0] == {"index": 0, "object": "score", "score": 0.0}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/rerank", {"documents": []}, "documents", "empty_array"),
    ("/v1/rerank", {"documents": ["a"] * 2049}, "documents", "array_above_max_length"),
    ("/v1/rerank", {"documents": [{"id": 1}]}, "documents[0].text", "missing_required_parameter"),
    ("/v1/rerank", {"documents": ["a"], "top_n": -1}, "top_n", "integer_below_min_value"),
    ("/v2/rerank", {"documents": ["a"], "query": None}, "query", "invalid_type"),
    ("/rerank", {}, "documents", "missing_required_parameter"),
    ("/rerank", {"texts": []}, "texts", "empty_array"),
    ("/v1/score", {"text_1": "a", "text_2": []}, "text_2", "empty_array"),
    ("/v1/score", {"text_1": "a", "text_2": [1]}, "text_2[0]", "invalid_type"),
]


@pytest.mark.parametrize(("path", "fields", "param", "code"), BAD)
async def test_invalid_input_is_a_400_that_names_the_field(world, path, fields, param, code):
    """The model gets nothing."""
    model = pooling_model(world, tasks=["score"])

    response = await post(world, path, **{"model": "fake", "query": "ab", **fields})

    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert model.scored == []
