"""Classifiers of any backend: one text in, one vector of scores out, and labels."""

from array import array
from typing import Any

import numpy as np
import pytest

from openai_frontend.contracts import Outputs
from openai_frontend.contracts.classification import ClassificationContract
from openai_frontend.contracts.embeddings import GenericEmbeddingContract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.errors import InvalidRequest, MalformedOutput, ModelUnavailable
from openai_frontend.pooling import EmbedRequest
from tests.fast.contracts.recorded import RecordedOutputs

LABELS = ("bad", "good", "odd")


def config(
    *,
    batch: int = 8,
    text: list[int] | None = None,
    scores: list[int] | None = None,
    name: str = "probabilities",
    **more: Any,
) -> dict[str, Any]:
    return {
        "max_batch_size": batch,
        "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": text or [1]}],
        "output": [{"name": name, "data_type": "TYPE_FP32", "dims": scores or [3], **more}],
    }


def contract(made: dict[str, Any], **options: Any) -> ClassificationContract:
    chosen = select_contracts(made, options=ContractOptions(labels=LABELS, **options))
    assert isinstance(chosen.classification, ClassificationContract)
    return chosen.classification


def requests(*texts: str) -> list[EmbedRequest]:
    return [EmbedRequest(request_id="r", prompt=text, task="classify") for text in texts]


def outputs(rows: Any, dtype: str = "<f4") -> Outputs:
    return RecordedOutputs(final=True, probabilities=np.asarray(rows, dtype))


def test_labels_make_a_vector_scores() -> None:
    """Whatever its name is, even one of an embedding."""

    for name in ("probabilities", "embedding"):
        chosen = select_contracts(config(name=name), options=ContractOptions(labels=LABELS))
        assert (chosen.name, chosen.embedding) == ("classification", None)
        assert "labels" in chosen.reason


def test_vector_without_labels_is_an_embedding_only_by_its_name() -> None:
    embedder = {**config(name="embedding")}
    embedder["input"][0]["name"] = "text_input"

    assert isinstance(select_contracts(embedder).embedding, GenericEmbeddingContract)
    with pytest.raises(ModelUnavailable, match=r"may be an embedding .* `label_filename`"):
        select_contracts(config())


ROWS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "a batch dimension": (config(batch=8), 8, (2, 1)),
    "a batch dimension and any number of texts": (config(batch=8, text=[-1]), 8, (2, 1)),
    "rows of its own": (config(batch=0, text=[-1], scores=[-1, 3]), 2048, (2,)),
}


@pytest.mark.parametrize("case", ROWS)
def test_texts_share_a_request(case: str) -> None:
    """As rows of one tensor: their lengths as four bytes, then their bytes."""

    made, limit, shape = ROWS[case]
    classifier = contract(made)

    assert classifier.batch_limit(tokenized=False) == limit
    sent = classifier.encode(requests("a", "é"))
    assert sent == {"TEXT": ("BYTES", shape, b"\1\0\0\0a\2\0\0\0\xc3\xa9")}


ALONE = {
    "one text": config(batch=0),
    "texts without rows of scores": config(batch=0, text=[-1]),
    "one row": config(batch=0, scores=[1, 3]),
}


@pytest.mark.parametrize("case", ALONE)
def test_other_models_get_a_text_per_request(case: str) -> None:
    classifier = contract(ALONE[case])

    assert classifier.batch_limit(tokenized=False) == 1
    assert classifier.encode(requests("a"))["TEXT"][1] == (1,)


@pytest.mark.parametrize("rows", [[[0.5, 0.25, 0.25]], [0.5, 0.25, 0.25]])
def test_one_row(rows: Any) -> None:
    [result] = contract(config()).decode(outputs(rows), 1)

    assert list(array("f", bytes(result.embedding))) == [0.5, 0.25, 0.25]


def test_rows_are_in_the_order_of_the_texts() -> None:
    first, second = contract(config()).decode(outputs([[1, 2, 3], [4, 5, 6]]), 2)

    assert (first.embedding.tolist(), second.embedding.tolist()) == ([1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(
    ("rows", "dtype", "reason"),
    [
        ([[1, 2, 3]], "<f4", "1 x 3 scores for 2 inputs"),
        ([[1, 2, 3]] * 3, "<f4", "3 x 3 scores for 2 inputs"),
        ([1, 2, 3], "<f4", "3 scores for 2 inputs"),
        ([[[1, 2, 3]]] * 2, "<f4", "2 x 1 x 3 scores for 2 inputs"),
        ([[1, 2, 3]] * 2, "<f8", "another type than FP32"),
    ],
)
def test_anything_but_a_row_for_each_text_is_an_error(rows: Any, dtype: str, reason: str) -> None:
    with pytest.raises(MalformedOutput, match=reason):
        contract(config()).decode(outputs(rows, dtype), 2)


def test_missing_output_is_an_error() -> None:
    with pytest.raises(MalformedOutput, match="no output 'probabilities'"):
        contract(config()).decode(RecordedOutputs(), 1)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "wrong count": (config(scores=[2]), {}, "3 labels for the 2 scores of its output 'prob"),
    "no labels": (config(), {"labels": None}, "no labels: set `label_filename` of its output"),
    "no text": ({**config(), "input": []}, {}, "0 of its inputs can be the text"),
    "two vectors": (
        {**config(), "output": [*config()["output"], *config(name="b")["output"]]},
        {},
        "2 of its outputs can be the scores; name one as 'scores'",
    ),
    "unknown name": (config(), {"tensors": {"vector": "b"}}, "unknown name 'vector'"),
    "required input": (
        {
            **config(),
            "input": [
                *config()["input"],
                {"name": "mask", "data_type": "TYPE_INT32", "dims": [1]},
            ],
        },
        {},
        "its input 'mask' is required",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_model_that_does_not_fit_says_why(case: str) -> None:
    made, options, reason = REFUSED[case]
    options = {"labels": LABELS, **options}

    with pytest.raises(ModelUnavailable, match=reason):
        select_contracts(made, options=ContractOptions(name="classification", **options))


def test_one_of_several_vectors_can_be_named() -> None:
    """By its file of labels, or by the options."""
    labelled = config(label_filename="labels.txt")
    labelled["output"] += config(name="pooled", scores=[384])["output"]
    named = {**config(), "output": [*config()["output"], *config(name="pooled")["output"]]}

    by_tensors = contract(named, name="classification", tensors={"scores": "probabilities"})

    for made in (contract(labelled), by_tensors):
        [result] = made.decode(outputs([[1, 2, 3]]), 1)
        assert list(result.embedding) == [1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_token_ids": [1], "param": "input[3]"}, "input[3]"),
        ({"prompt": "a", "use_activation": False}, "use_activation"),
    ],
)
def test_what_the_model_cannot_read_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        contract(config()).encode([EmbedRequest(request_id="r", task="classify", **fields)])
    assert refused.value.param == param


def test_engine_without_labels_is_refused() -> None:
    inprocess = {
        "backend": "inprocess",
        "input": [{"name": "embedding_request", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    with pytest.raises(ModelUnavailable, match="engine reports no labels"):
        select_contracts(inprocess, tasks=["classify"])


@pytest.mark.parametrize(
    ("outputs", "tensors", "name"),
    [
        ({"embedding": "FP32", "scores": "FP32"}, {}, "embeddings"),
        ({"embedding": "FP32", "scores": "FP32"}, {"embedding": "embedding"}, "embeddings"),
        ({"answer": "STRING", "scores": "FP32"}, {}, "python"),
        ({"first": "FP32", "scores": "FP32"}, {"scores": "scores"}, "classification"),
    ],
)
def test_labels_do_not_take_other_routes(
    outputs: dict[str, str], tensors: dict[str, str], name: str
) -> None:
    """A model with a usual vector or a text keeps its route; `contract` may choose another."""
    made = config()
    made["input"][0]["name"] = "text_input"
    made["output"] = [
        {"name": each, "data_type": f"TYPE_{kind}", "dims": [3]} for each, kind in outputs.items()
    ]
    made["output"][1]["label_filename"] = "labels.txt"

    chosen = select_contracts(made, options=ContractOptions(labels=LABELS, tensors=tensors))

    assert chosen.name == name


def test_no_scores_are_refused() -> None:
    with pytest.raises(MalformedOutput, match="no scores"):
        contract(config()).decode(outputs(np.zeros((1, 0))), 1)
