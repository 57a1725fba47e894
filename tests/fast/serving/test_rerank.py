from typing import Any

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.limits import InferenceLimits
from openai_frontend.serving.scoring import Reranking, Scoring, has_texts
from schemas.rerank import RerankRequest, ScoreRequest, TextsRerankRequest
from tests.fast.serving.fake_model import admission
from tests.fast.serving.fake_pooling_model import FakePoolingModel

POLICY = FieldPolicy("reject")
RERANKING = Reranking(POLICY, Scoring(InferenceLimits(), POLICY, admission()))
DOCUMENTS = ["x", "ab", "a", "ba"]  # 0, 2, 1 and 2 letters of the query "ab"
BEST_FIRST = [1, 3, 2, 0]  # of equal documents the first stays first


def request(**fields: Any) -> RerankRequest:
    return RerankRequest.model_validate(
        {"model": "fake", "query": "ab", "documents": DOCUMENTS, **fields}
    )


def model_for(task: str) -> Any:
    return FakePoolingModel(tasks=[task])


def cross_encoder() -> Any:
    return model_for("score")


@pytest.mark.parametrize(("top_n", "expected"), [(None, 4), (0, 4), (1, 1), (3, 3), (9, 4)])
async def test_top_n_keeps_the_best_documents(top_n, expected):
    """0 means all, as in vLLM."""
    answer = await RERANKING.create(request(top_n=top_n), cross_encoder())

    assert BEST_FIRST[:expected] == [result.index for result in answer.results]


RETURNED = [("create", None, True), ("create", False, False), ("create_for_cohere", None, False),
            ("create_for_cohere", True, True)]  # fmt: skip


@pytest.mark.parametrize(("method", "return_documents", "expected"), RETURNED)
async def test_return_documents_defaults_by_dialect(method, return_documents, expected):
    """Jina's form returns the documents by default; Cohere's v2 returns them only on request."""
    create = getattr(RERANKING, method)

    answer = await create(request(return_documents=return_documents), cross_encoder())

    texts = [result.document and result.document.text for result in answer.results]
    assert texts == ([DOCUMENTS[at] for at in BEST_FIRST] if expected else [None] * 4)


async def test_text_embeddings_inference_gets_a_bare_list():
    """Each item has an index and a score."""
    texts = TextsRerankRequest(query="ab", texts=DOCUMENTS, return_text=True)

    ranks = await RERANKING.create_for_texts(texts, cross_encoder())

    assert [(rank.index, rank.score, rank.text) for rank in ranks] == [
        (1, 2, "ab"), (3, 2, "ba"), (2, 1, "a"), (0, 0, "x"),
    ]  # fmt: skip


async def test_query_and_documents_may_be_objects_with_text():
    fields = {"query": {"text": "ab"}, "documents": [{"text": "a", "id": 7}, "ab"]}

    answer = await RERANKING.create(request(**fields), cross_encoder())

    assert [(each.index, each.document.text) for each in answer.results] == [(1, "ab"), (0, "a")]


@pytest.mark.parametrize("field", [{"max_tokens_per_doc": 5}, {"rank_fields": ["title", "text"]}])
async def test_unsupported_field_is_refused_by_name(field):
    """The request does not reach the model."""
    model = cross_encoder()

    with pytest.raises(InvalidRequest) as refused:
        await RERANKING.create(request(**field), model)

    assert ([refused.value.param], model.scored) == ([*field], [])


BODIES = [
    (b'{"query": "q", "texts": ["a"]}', True),
    (b'{"query": "q", "texts" : ["documents"]}', True),
    (rb'{"query": "q", "texts": ["\"documents\":"]}', True),
    (b'{"query": "q", "documents": ["a"]}', False),
    (b'{"query": "q", "documents": ["texts"]}', False),
    (rb'{"query": "\"texts\":", "documents": ["a"]}', False),
    (b"nonsense", False),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_key_texts_identifies_the_tei_dialect(body, expected):
    """The content of the texts does not matter."""
    assert expected is has_texts(body)


LONG = ["b" * 20, "a", "ab" + "x" * 20]
TRUNCATIONS = [
    {"truncate_prompt_tokens": -1},
    {"truncate": True},
    {"truncate": True, "truncation_direction": "Right"},
    {"truncate_prompt_tokens": 10, "truncation_side": "right"},
]


@pytest.mark.parametrize("fields", TRUNCATIONS)
@pytest.mark.parametrize("task", ["score", "embed"])
async def test_documents_are_truncated_on_request(fields, task):
    """The model gets as much as its context has room for, from pairs or texts that are too long."""
    model = model_for(task)

    answer = await RERANKING.create(request(documents=LONG, **fields), model)

    lengths = {len(each.prompt_token_ids) for each in (*model.scored, *model.embedded)}
    assert max(lengths) == 10
    assert len(answer.results) == 3


@pytest.mark.parametrize("fields", [*TRUNCATIONS, {"truncate": False}, {}])
@pytest.mark.parametrize("task", ["score", "embed"])
async def test_truncation_changes_nothing_that_fits(fields, task):
    """All clients that send it by default get the same scores."""
    plain = await RERANKING.create(request(), model_for(task))

    answer = await RERANKING.create(request(**fields), model_for(task))

    assert [each.relevance_score for each in answer.results] == [
        each.relevance_score for each in plain.results
    ]


@pytest.mark.parametrize("fields", [{}, {"truncate": False}])
async def test_a_long_document_is_named_without_truncation(fields):
    with pytest.raises(InvalidRequest) as refused:
        await RERANKING.create(request(documents=LONG, **fields), cross_encoder())

    assert refused.value.param == "documents[0]"


@pytest.mark.parametrize("fields", [{"truncate_prompt_tokens": -1}, {"truncate": True}])
async def test_a_model_that_tokenizes_itself_accepts_truncation(fields):
    """It decides about its own context."""
    model: Any = FakePoolingModel(has_tokenizer=False)

    assert len((await RERANKING.create(request(**fields), model)).results) == 4


async def test_truncation_beyond_the_context_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        await RERANKING.create(request(truncate_prompt_tokens=11), cross_encoder())

    assert refused.value.param == "truncate_prompt_tokens"


@pytest.mark.parametrize("fields", [{"truncate": True}, {"truncate_prompt_tokens": -1}])
async def test_other_forms_take_truncation_too(fields):
    """text-embeddings-inference's, Cohere's and vLLM's scores."""
    texts = TextsRerankRequest.model_validate({"query": "ab", "texts": LONG, **fields})
    pairs = ScoreRequest.model_validate({"text_1": "ab", "text_2": LONG, **fields})
    scoring = Scoring(InferenceLimits(), POLICY, admission())

    ranks = await RERANKING.create_for_texts(texts, cross_encoder())
    cohere = await RERANKING.create_for_cohere(request(documents=LONG, **fields), cross_encoder())
    scores = await scoring.create(pairs, cross_encoder())

    assert [len(ranks), len(cohere.results), len(scores.data)] == [3, 3, 3]
