"""Inputs that share a Triton request: how many, and that clients see no difference."""

import asyncio
from typing import Any

import pytest

from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.embeddings import Embeddings
from openai_frontend.serving.pooling import SLICE_US, embedding_cost_us, pooling_cost_us
from openai_frontend.serving.pooling_inputs import PoolingInputs
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.scoring import Reranking, Scoring
from schemas.embeddings import EmbeddingRequest
from schemas.rerank import RerankRequest, ScoreRequest
from tests.fast.serving.fake_model import admission
from tests.fast.serving.fake_pooling_model import FakePoolingModel


class Endpoints:
    """All that embed or score, with so many slots."""

    def __init__(self, slots: int = 1024) -> None:
        limits, policy, given = InferenceLimits(), FieldPolicy("reject"), admission(slots)
        self.embeddings = Embeddings(PoolingInputs(limits, policy), policy, given)
        self.scoring = Scoring(limits, policy, given)
        self.reranking = Reranking(FieldPolicy("reject"), self.scoring)

    async def embed(self, model: Any, given: Any, **fields: Any) -> bytes:
        request = EmbeddingRequest.model_validate({"model": "fake", "input": given, **fields})
        return await self.embeddings.create(request, model)


def model(**options: Any) -> FakePoolingModel:
    return FakePoolingModel(max_model_len=50_000, **options)


@pytest.mark.parametrize(
    ("slots", "inputs", "sizes", "at_once"),
    [
        (1024, 1, [1], 1),
        (1024, 16, [16], 16),
        (1024, 33, [32, 1], 33),
        (1024, 128, [32] * 4, 128),
        (1024, 300, [32] * 9 + [12], 128),  # four batches at a time
        (16, 16, [16], 16),
        (16, 40, [4] * 10, 16),  # the engine has other batches when one ends
        (3, 5, [1] * 5, 3),
        (1, 3, [1] * 3, 1),
    ],
)
async def test_inputs_share_requests_within_the_slots(slots, inputs, sizes, at_once):
    """An input takes a slot, whatever the batches are."""
    embedder = model(iterations=50)

    await Endpoints(slots).embed(embedder, ["a"] * inputs)

    assert (embedder.batches, embedder.most_at_once) == (sizes, at_once)


async def test_batch_takes_at_most_one_slice_of_the_event_loop():
    """An input that takes more is alone."""
    embedder = model()
    long, longer = [5] * 15_000, [5] * 40_000

    await Endpoints().embed(embedder, [long, long, long, longer, long, [5]])

    assert embedder.batches == [2, 1, 1, 2]
    assert pooling_cost_us([long, long]) < SLICE_US < pooling_cost_us([long, long, long])


async def test_small_batches_of_long_inputs_use_all_slots():
    """More of them run at a time than of batches with 8 inputs, the most for 32 slots."""
    embedder = model(iterations=50)

    await Endpoints(32).embed(embedder, [[5] * 8_000] * 36)

    assert (embedder.batches, embedder.most_at_once) == ([3] * 12, 30)


def test_text_takes_time_to_write():
    """That of a model which tokenizes itself; token ids are sent instead of their text."""
    million = "a" * 1_000_000

    known = embedding_cost_us([Prompt(million, [5])])
    assert known == embedding_cost_us([Prompt("a", [5])]) < SLICE_US
    assert embedding_cost_us([Prompt(million, [])]) > 5 * SLICE_US


@pytest.mark.parametrize("options", [{"takes_batches": False}, {"has_tokenizer": False}])
async def test_model_that_reads_one_input_gets_one(options):
    """Or text, which the model tokenizes itself."""
    embedder = model(**options)

    await Endpoints().embed(embedder, ["a", "b", "c"])

    assert (embedder.batches, embedder.most_at_once) == ([1, 1, 1], 3)


async def test_scores_share_requests():
    cross, embedder = model(tasks=["score"]), model()
    request = ScoreRequest(model="fake", text_1="a", text_2=["a", "b", "c"])

    await Endpoints().scoring.create(request, cross)  # type: ignore[arg-type]
    await Endpoints().scoring.create(request, embedder)  # type: ignore[arg-type]

    assert (cross.batches, embedder.batches) == ([3], [3])  # "a" is embedded once


TEXTS = ["a", "ab", "b" * 40, "ab", "é"]
SAME: list[dict[str, Any]] = [
    {"given": ["", *TEXTS]},
    {"given": TEXTS, "encoding_format": "base64"},
    {"given": TEXTS, "dimensions": 2},
    {"given": TEXTS, "add_special_tokens": False, "truncate_prompt_tokens": 1},
    {"given": [[5], [6, 7], [8] * 30]},
    {"given": [f"{at} " * at for at in range(300)], "encoding_format": "base64"},
]


def each_way(**options: Any) -> tuple[FakePoolingModel, FakePoolingModel]:
    """A model that gets batches, and one that gets an input per request."""
    options = {**options, "max_model_len": 10_000}
    return FakePoolingModel(**options), FakePoolingModel(takes_batches=False, **options)


@pytest.mark.parametrize("slots", [1, 7, 1024])
@pytest.mark.parametrize("fields", SAME)
async def test_embeddings_are_the_same_byte_for_byte(fields, slots):
    together, alone = [
        await Endpoints(slots).embed(model, **fields) for model in each_way(matryoshka=True)
    ]

    assert together == alone


@pytest.mark.parametrize("task", ["embed", "score"])
async def test_ranks_are_the_same(task):
    request = RerankRequest(model="fake", query="ab", documents=["b", "aab", "x", "b"])

    together, alone = [
        await Endpoints().reranking.create(request, model)  # type: ignore[arg-type]
        for model in each_way(tasks=[task])
    ]

    assert (together.results, together.usage) == (alone.results, alone.usage)


async def test_loop_is_free_between_vectors():
    """Rendering 32 vectors of 40,000 numbers takes several slices."""
    embedder = model(vectors={"a": [0.5] * 40_000}, dimensions=40_000)
    embedding = asyncio.ensure_future(Endpoints().embed(embedder, ["a"] * 32))
    rounds = 0
    while not embedding.done():
        await asyncio.sleep(0)
        rounds += 1

    assert embedder.batches == [32]
    assert rounds > 32 * 40_000 * 4 * 0.01 / SLICE_US / 2
