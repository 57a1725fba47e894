from dataclasses import replace
from typing import Any

import pytest

from openai_frontend.errors import ContextLengthExceeded, InferenceFailed, InvalidRequest
from openai_frontend.pooling import EmbeddingResult, EmbedRequest, ScorePairRequest, ScoreResult
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.scoring import Scoring
from schemas.rerank import ScoreRequest as WireRequest
from schemas.rerank import ScoreResponse
from tests.fast.serving.fake_model import admission
from tests.fast.serving.fake_pooling_model import FakePoolingModel

SCORING = Scoring(InferenceLimits(), FieldPolicy("reject"), admission())
VECTORS: dict[str, list[float]] = {"x": [1, 0, 0], "near": [1, 0.1, 0], "far": [0, 1, 0]}


async def create(model: FakePoolingModel, **fields: Any) -> ScoreResponse:
    request = WireRequest.model_validate({"model": "fake", **fields})
    return await SCORING.create(request, model)  # type: ignore[arg-type]


def cross_encoder(**options: Any) -> FakePoolingModel:
    return FakePoolingModel(tasks=["score"], **options)


NAMES = [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]


@pytest.mark.parametrize(("first", "second"), NAMES)
async def test_each_vllm_name_of_the_two_sides_is_accepted(first, second):
    answer = await create(cross_encoder(), **{first: "ab", second: ["a", "x", "ab"]})

    assert [(each.index, each.score) for each in answer.data] == [(0, 1), (1, 0), (2, 2)]


SHAPES: list[tuple[Any, Any, list[float]]] = [
    ("a", "ab", [1]),
    ("a", ["a", "b"], [1, 0]),
    (["a"], ["a", "b"], [1, 0]),
    (["a", "b"], ["a", "bb"], [1, 2]),
]


@pytest.mark.parametrize(("first", "second", "expected"), SHAPES)
async def test_one_text_pairs_with_each_of_many(first, second, expected):
    """Two lists of equal length pair by index."""
    answer = await create(cross_encoder(), text_1=first, text_2=second)

    assert expected == [each.score for each in answer.data]


async def test_cross_encoder_gets_both_texts_in_one_sequence():
    """Each token has the type of its part."""
    model = cross_encoder()

    answer = await create(model, text_1="a", text_2="bc")

    [request] = model.scored
    assert (request.prompt_token_ids, request.token_type_ids) == ([97, 98, 99], [0, 1, 1])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)


async def test_embedding_model_scores_by_cosine_similarity():
    model = FakePoolingModel(vectors=VECTORS)

    answer = await create(model, text_1="x", text_2=["near", "far", "x"])

    near, far, same = (each.score for each in answer.data)
    assert (round(near, 3), far, same) == (0.995, 0, 1)


async def test_text_of_several_pairs_is_embedded_once():
    model = FakePoolingModel(vectors=VECTORS)

    await create(model, text_1="x", text_2=["near", "x", "near"])

    assert [request.prompt for request in model.embedded] == ["x", "near"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "text_1", "missing_required_parameter"),
    ({"text_1": "a"}, "text_2", "missing_required_parameter"),
    ({"queries": "a"}, "documents", "missing_required_parameter"),
    ({"items": "a"}, "queries", "missing_required_parameter"),
    ({"text_1": "a", "text_2": "b", "data_1": "c"}, "data_1", "invalid_value"),
    ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", "invalid_value"),
    ({"text_1": "a", "text_2": "b", "instruction": "x"}, "instruction", "unsupported_parameter"),
    ({"text_1": "a", "text_2": "b", "nonsense": 1}, "nonsense", "unknown_parameter"),
    ({"text_1": "a", "text_2": ["b", "c" * 10]}, "text_2[1]", "context_length_exceeded"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
async def test_invalid_request_is_refused_by_field(fields, param, code):
    """The request does not reach the model."""
    model = cross_encoder()

    with pytest.raises(InvalidRequest) as refused:
        await create(model, **fields)

    assert (param, code) == (refused.value.param, refused.value.code)
    assert model.scored == []


async def test_text_too_long_to_embed_is_refused_by_path():
    with pytest.raises(ContextLengthExceeded) as refused:
        await create(FakePoolingModel(), text_1="a", text_2=["b", "c" * 10])

    assert refused.value.param == "text_2[1]"


@pytest.mark.parametrize(("task", "length"), [("score", 3), ("embed", 5)])
async def test_usage_counts_the_prompts_if_the_backend_reports_none(task, length):
    class Uncounted(FakePoolingModel):
        async def _embed(self, request: EmbedRequest) -> EmbeddingResult:
            return replace(await super()._embed(request), prompt_tokens=0)

        async def _score(self, request: ScorePairRequest) -> ScoreResult:
            return replace(await super()._score(request), prompt_tokens=0)

    answer = await create(Uncounted(tasks=[task]), text_1="a", text_2="bc")

    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (length, length)


async def test_chat_model_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="'fake' does not score texts") as refused:
        await create(FakePoolingModel(tasks=["generate"]), text_1="a", text_2="b")

    assert refused.value.param == "model"


@pytest.mark.parametrize("score", [float("nan"), float("-inf")])
async def test_nan_score_is_an_inference_failure(score):
    """JSON has no NaN."""

    class Broken(FakePoolingModel):
        async def _score(self, request: ScorePairRequest) -> ScoreResult:
            return ScoreResult(score, 1)

    with pytest.raises(InferenceFailed):
        await create(Broken(tasks=["score"]), text_1="a", text_2="b")


@pytest.mark.parametrize("model", [cross_encoder(), FakePoolingModel()], ids=["judged", "compared"])
async def test_pairs_share_one_length_limit(model):
    """The query counts once per document."""
    scoring = Scoring(
        InferenceLimits(max_prompt_tokens=9),
        FieldPolicy("reject"),
        admission(),
    )
    fits = WireRequest.model_validate({"model": "fake", "text_1": "a", "text_2": ["a"]})
    many = WireRequest.model_validate({"model": "fake", "text_1": "a", "text_2": ["abc", "abcde"]})

    assert len((await scoring.create(fits, model)).data) == 1
    with pytest.raises(InvalidRequest) as refused:
        await scoring.create(many, model)
    assert refused.value.code == "max_tokens_per_request"
