"""Embedding models of any backend: their tensors have the default names or names from
the options.
"""

from typing import Any

import numpy as np
import pytest

from openai_frontend.contracts.embeddings import GenericEmbeddingContract
from openai_frontend.contracts.select import ContractOptions, select_contracts
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.pooling import EmbedRequest
from tests.fast.contracts.recorded import RecordedOutputs, tensors, values

REQUEST = EmbedRequest(request_id="r", prompt="é", prompt_token_ids=[5, 6])


def config(inputs: str, outputs: str, *, batch: int = 0, length: int = 3) -> dict[str, Any]:
    declared = [{**each, "dims": [length]} for each in tensors(outputs)]
    return {"max_batch_size": batch, "input": tensors(inputs), "output": declared}


@pytest.mark.parametrize(
    ("inputs", "named", "expected"),
    [
        ("text_input:STRING", {}, {"text_input": ["é"]}),
        ("SENTENCE:STRING", {"text_input": "SENTENCE"}, {"SENTENCE": ["é"]}),
        ("input_ids:INT64", {}, {"input_ids": [5, 6]}),
        (
            "input_ids:INT64 attention_mask:INT64 token_type_ids:INT64",
            {},
            {"input_ids": [5, 6], "attention_mask": [1, 1], "token_type_ids": [0, 0]},
        ),
        ("tokens:INT32", {"prompt_token_ids": "tokens"}, {"tokens": [5, 6]}),
    ],
)
def test_prompt_has_the_models_form(
    inputs: str, named: dict[str, str], expected: dict[str, Any]
) -> None:
    """It is text, or token ids with the further inputs of encoders."""

    options = ContractOptions(name="embeddings", tensors=named)
    chosen = select_contracts(config(inputs, "v:FP32"), options=options)
    assert chosen.embedding is not None
    sent = chosen.embedding.encode([REQUEST])
    assert {name: values(tensor) for name, tensor in sent.items()} == expected


def test_batching_model_gets_one_row() -> None:
    """Triton declares its shapes without the batch dimension."""

    sent = GenericEmbeddingContract(config("input_ids:INT64", "v:FP32", batch=8)).encode([REQUEST])
    assert sent["input_ids"][1] == (1, 2)


def test_default_names_need_no_option() -> None:
    chosen = select_contracts(config("text_input:STRING", "embedding:FP32 other:FP32"))
    assert (chosen.name, chosen.generation) == ("embeddings", None)
    assert isinstance(chosen.embedding, GenericEmbeddingContract)


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_vector_is_not_copied(shape: tuple[int, ...]) -> None:
    """It is the response's own memory, with or without a batch dimension."""

    vector = np.array([1.0, 2.0, 0.5], dtype="<f4").reshape(shape)
    contract = GenericEmbeddingContract(config("text_input:STRING", "v:FP32"))
    [result] = contract.decode(RecordedOutputs(final=True, v=vector), 1)
    assert (result.embedding.tolist(), result.embedding.format) == ([1.0, 2.0, 0.5], "f")
    vector[..., 0] = 4.0
    assert result.embedding[0] == 4.0


@pytest.mark.parametrize(
    ("datatype", "sent"),
    [
        ("FP16", np.array([1.0, -2.5, 0.5], dtype="<f2")),
        ("BF16", np.array([0x3F80, 0xC020, 0x3F00], dtype="<u2")),
        ("FP64", np.array([1.0, -2.5, 0.5])),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_other_floats_become_float32(datatype: str, sent: Any, shape: tuple[int, ...]) -> None:
    """TensorRT's models often return FP16."""
    contract = GenericEmbeddingContract(config("text_input:STRING", f"embedding:{datatype}"))

    [result] = contract.decode(RecordedOutputs(final=True, embedding=sent.reshape(shape)), 1)

    assert (result.embedding.tolist(), result.embedding.format) == ([1.0, -2.5, 0.5], "f")


@pytest.mark.parametrize(
    ("outputs", "output"),
    [("v:FP32 w:FP16", "v"), ("embedding:FP16 w:FP32", "embedding"), ("w:FP16 n:INT32", "w")],
)
def test_the_vector_is_found_among_other_outputs(outputs: str, output: str) -> None:
    """By its name, else as the only FP32, else as the only float."""
    contract = GenericEmbeddingContract(config("text_input:STRING", outputs))
    vector: dict[str, Any] = {output: np.ones(3, "<f2" if f"{output}:FP16" in outputs else "<f4")}

    [result] = contract.decode(RecordedOutputs(final=True, **vector), 1)

    assert result.embedding.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("length", [3, -1])
def test_several_vectors_are_rejected(length: int) -> None:
    """A model that returns one vector per token must pool them itself."""

    contract = GenericEmbeddingContract(config("text_input:STRING", "v:FP32", length=length))
    vectors = np.zeros((1, 4, 3), dtype="<f4")
    with pytest.raises(InferenceFailed, match="instead of one vector"):
        contract.decode(RecordedOutputs(final=True, v=vectors), 1)
    with pytest.raises(InferenceFailed, match="no embedding"):
        contract.decode(RecordedOutputs(final=True), 1)


def test_other_dimensions_are_rejected() -> None:
    """The model's own number of dimensions is accepted."""

    contract = GenericEmbeddingContract(config("text_input:STRING", "v:FP32"))
    assert contract.encode([EmbedRequest(request_id="r", prompt="a", dimensions=3)])
    with pytest.raises(InvalidRequest) as refused:
        contract.encode([EmbedRequest(request_id="r", prompt="a", dimensions=2)])
    assert refused.value.param == "dimensions"


@pytest.mark.parametrize("inputs", ["text_input:STRING", "input_ids:INT64"])
def test_prompt_of_the_other_form_is_rejected(inputs: str) -> None:
    """The request has only text and the model needs ids, or the reverse."""

    contract = GenericEmbeddingContract(config(inputs, "v:FP32"))
    known = {"prompt": "a"} if "ids" in inputs else {"prompt_token_ids": [1]}
    with pytest.raises(InvalidRequest, match="only"):
        contract.encode([EmbedRequest(request_id="r", **known)])


@pytest.mark.parametrize(
    ("inputs", "outputs", "named", "reason"),
    [
        ("x:STRING", "v:FP32", {}, "none of its inputs is a known prompt"),
        ("text_input:STRING mood:FP32", "v:FP32", {}, "'mood' is required"),
        ("text_input:STRING", "v:FP32 w:FP32", {}, "2 of its outputs"),
        ("text_input:STRING", "v:INT32", {}, "0 of its outputs"),
        ("text_input:STRING", "v:FP16 w:BF16", {}, "2 of its outputs"),
        ("text_input:STRING", "v:FP32", {"embedding": "w"}, "0 of its outputs"),
        ("text_input:STRING", "v:FP32", {"max_tokens": "w"}, "unknown name 'max_tokens'"),
    ],
)
def test_unusable_models_give_a_reason(
    inputs: str, outputs: str, named: dict[str, str], reason: str
) -> None:
    """The reason names the tensor."""

    with pytest.raises(ModelUnavailable, match=reason):
        GenericEmbeddingContract(config(inputs, outputs), named)
