"""A prompt becomes the tensors of an embedding or score request; the response becomes
its result.
"""

from array import array
from typing import Any

import orjson
import pytest

from openai_frontend.contracts import TensorInput
from openai_frontend.contracts.pooling import EmbeddingContract, ScoreContract
from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.pooling import EmbedRequest, ScorePairRequest, ScoreResult
from tests.fast.contracts.recorded import INPROCESS, NVIDIA_VLLM, RecordedOutputs

TRUE = ("BOOL", (1,), b"\x01")
every = pytest.mark.parametrize("config", [INPROCESS, NVIDIA_VLLM], ids=["in-process", "NVIDIA's"])


def document(tensor: TensorInput) -> Any:
    """Return the content of a STRING[1] tensor of JSON."""
    datatype, shape, raw = tensor
    assert (datatype, shape, int.from_bytes(raw[:4], "little")) == ("BYTES", (1,), len(raw) - 4)
    return orjson.loads(raw[4:])


@every
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": "é"}, {"input": "é"}),
        ({"prompt": "a", "dimensions": 8}, {"input": "a", "pooling_params": {"dimensions": [8]}}),
    ],
    ids=["text", "dimensions"],
)
def test_encode_embedding_request(config: Any, values: Any, expected: Any) -> None:
    """One document for every backend, with dimensions in NVIDIA's format."""

    inputs = EmbeddingContract(config).encode([EmbedRequest(request_id="r", **values)])
    assert document(inputs.pop("embedding_request")) == expected
    assert inputs == {"return_num_input_tokens": TRUE}


@pytest.mark.parametrize(
    ("config", "expected", "tensors"),
    [
        (INPROCESS, {}, {"prompt_token_ids": ("INT32", (2,), array("i", [1, 2]).tobytes())}),
        (NVIDIA_VLLM, {"input": [1, 2]}, {}),
    ],
    ids=["in-process", "NVIDIA's"],
)
def test_token_ids_are_preferred_to_text(config: Any, expected: Any, tensors: Any) -> None:
    """They are sent as a tensor, which needs no parsing, if the model has one."""

    request = EmbedRequest(request_id="r", prompt="a", prompt_token_ids=[1, 2])
    inputs = EmbeddingContract(config).encode([request])
    assert document(inputs.pop("embedding_request")) == expected
    assert inputs == {"return_num_input_tokens": TRUE, **tensors}


def test_models_with_salts_get_the_salt_of_the_caller() -> None:
    """Prefix caches separate callers also for inputs to embed and to score."""

    embed = EmbedRequest(request_id="r", prompt="a", cache_salt="s")
    pair = ScorePairRequest(request_id="r", prompt_token_ids=[1], cache_salt="s")

    salt = ("BYTES", (1,), b"\x01\x00\x00\x00s")
    assert EmbeddingContract(INPROCESS).encode([embed])["cache_salt"] == salt
    assert ScoreContract(INPROCESS).encode([pair])["cache_salt"] == salt
    assert "cache_salt" not in EmbeddingContract(NVIDIA_VLLM).encode([embed])


def test_empty_request_is_rejected() -> None:
    """A request needs a text or token ids."""

    with pytest.raises(InvalidRequest) as refused:
        EmbeddingContract(INPROCESS).encode([EmbedRequest(request_id="r")])
    assert refused.value.param == "input"


def test_vector_is_not_copied() -> None:
    """An in-process model's vector is the tensor's own memory."""

    vector = array("f", [1.0, -2.0])
    [result] = EmbeddingContract(INPROCESS).decode(
        RecordedOutputs(embedding=vector, num_input_tokens=3), 1
    )
    vector[0] = 5.0
    assert (list(result.embedding), result.prompt_tokens) == ([5.0, -2.0], 3)


def test_decode_nvidias_json_vector() -> None:
    """It becomes float32 like any other."""

    [result] = EmbeddingContract(NVIDIA_VLLM).decode(
        RecordedOutputs(text_output=b"[0.5, -2]", num_input_tokens=3), 1
    )
    assert (result.embedding.format, list(result.embedding)) == ("f", [0.5, -2.0])
    assert (result.embedding.tobytes(), result.prompt_tokens) == (b"\0\0\0?\0\0\0\xc0", 3)


@pytest.mark.parametrize("text", [None, b"", b"N/A", b'["a"]', b'"text"', b"5"])
def test_missing_vector_is_an_error(text: bytes | None) -> None:
    outputs = RecordedOutputs() if text is None else RecordedOutputs(text_output=text)
    with pytest.raises(InferenceFailed, match="no embedding"):
        EmbeddingContract(NVIDIA_VLLM).decode(outputs, 1)


def ints(*values: int) -> TensorInput:
    return "INT32", (len(values),), array("i", values).tobytes()


@pytest.mark.parametrize("types", [None, [0, 1]], ids=["one type", "two types"])
def test_encode_score_request(types: Any) -> None:
    """The sequence, and its token types if it has any."""

    asked = ScorePairRequest(request_id="r", prompt_token_ids=(1, 2), token_type_ids=types)
    inputs = ScoreContract(INPROCESS).encode([asked])
    assert document(inputs.pop("score_request")) == {}
    typed = {} if types is None else {"token_type_ids": ints(0, 1)}
    assert inputs == {
        "return_num_input_tokens": TRUE,
        "prompt_token_ids": ints(1, 2),
        **typed,
    }


def test_score_request_of_a_model_in_front_of_ours() -> None:
    """An ensemble, for example: it has the document's tensor only, and gets a pair per request."""

    text = {"name": "score_request", "data_type": "TYPE_STRING", "dims": [1]}
    contract = ScoreContract({"platform": "ensemble", "input": [text]})
    asked = ScorePairRequest(request_id="r", prompt_token_ids=(1, 2), token_type_ids=(0, 1))
    inputs = contract.encode([asked])
    assert document(inputs.pop("score_request")) == {"input": [1, 2], "token_type_ids": [0, 1]}
    assert (inputs, contract.batch_limit(tokenized=True)) == ({}, 1)


def test_batch_of_embedding_requests() -> None:
    """The prompts follow each other in one tensor; another one has their lengths."""

    requests = [
        EmbedRequest(request_id="r", prompt_token_ids=ids, dimensions=8)
        for ids in ([1, 2], array("i", [3]))
    ]
    inputs = EmbeddingContract(INPROCESS).encode(requests)
    assert document(inputs.pop("embedding_request")) == {"pooling_params": {"dimensions": [8]}}
    assert inputs == {
        "return_num_input_tokens": TRUE,
        "prompt_token_ids": ints(1, 2, 3),
        "prompt_lengths": ints(2, 1),
    }


def test_batch_of_score_requests() -> None:
    """Token types follow each other in the same way."""

    requests = [
        ScorePairRequest(request_id="r", prompt_token_ids=ids, token_type_ids=types)
        for ids, types in (((1, 2), (0, 1)), ((3,), (0,)))
    ]
    inputs = ScoreContract(INPROCESS).encode(requests)
    assert (inputs["prompt_token_ids"], inputs["token_type_ids"]) == (ints(1, 2, 3), ints(0, 1, 0))
    assert inputs["prompt_lengths"] == ints(2, 1)


def test_vectors_of_a_batch_are_not_copied() -> None:
    """Each is a part of the response's own memory."""

    vectors = array("f", [1.0, -2.0, 3.0, 4.0])
    results = EmbeddingContract(INPROCESS).decode(
        RecordedOutputs(embedding=vectors, num_input_tokens=[3, 1]), 2
    )
    vectors[2] = 5.0
    assert [(list(each.embedding), each.prompt_tokens) for each in results] == [
        ([1.0, -2.0], 3),
        ([5.0, 4.0], 1),
    ]


def test_scores_of_a_batch() -> None:
    outputs = RecordedOutputs(score=[0.0, 0.5], num_input_tokens=[3, 1])
    expected = [ScoreResult(0.0, 3), ScoreResult(0.5, 1)]
    assert ScoreContract(INPROCESS).decode(outputs, 2) == expected


def test_batch_of_another_size_is_an_error() -> None:
    """Else the results would belong to other inputs."""

    vectors, scores = array("f", [1.0, 2.0, 3.0]), [0.0, 0.5, 1.0]
    with pytest.raises(InferenceFailed, match="3 numbers for 2 inputs"):
        EmbeddingContract(INPROCESS).decode(RecordedOutputs(embedding=vectors), 2)
    with pytest.raises(InferenceFailed, match="no score"):
        ScoreContract(INPROCESS).decode(RecordedOutputs(score=scores), 2)


@pytest.mark.parametrize(("config", "limit"), [(INPROCESS, 32), (NVIDIA_VLLM, 1)])
def test_only_inprocess_models_take_batches_of_token_ids(config: Any, limit: int) -> None:
    contract = EmbeddingContract(config)

    assert contract.batch_limit(tokenized=True) == limit
    assert contract.batch_limit(tokenized=False) == 1
