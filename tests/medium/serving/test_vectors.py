import base64
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.errors import InferenceFailed
from openai_frontend.serving.pooling import cosine_similarity, pooled_list, render
from schemas.embeddings import Embedding
from tests.cpu_time import budget

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def packed(numbers: list[float]) -> memoryview:
    return memoryview(struct.pack(f"<{len(numbers)}f", *numbers))


def read(rendered: bytes) -> Embedding:
    """The bytes, parsed by the schema."""
    return Embedding.model_validate_json(rendered)


@given(FLOATS)
def test_float32_round_trips_exactly(numbers):
    embedding = read(render(7, packed(numbers), as_base64=False))

    assert bytes(packed(list(embedding.embedding))) == bytes(packed(numbers))  # type: ignore[arg-type]
    assert (embedding.object, embedding.index) == ("embedding", 7)


@given(FLOATS)
def test_base64_holds_the_tensor_bytes(numbers):
    """They are little-endian float32."""
    embedding = read(render(0, packed(numbers), as_base64=True))

    assert bytes(packed(numbers)) == base64.b64decode(str(embedding.embedding))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("as_base64", [False, True])
def test_nan_and_infinity_are_inference_failures(number, as_base64):
    """This includes base64, which could carry them."""
    with pytest.raises(InferenceFailed):
        render(0, packed([1.0, number]), as_base64=as_base64)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_similarity_of_a_vector_with_nan_or_infinity_fails(number):
    for pair in ([1.0, number], [1.0, 1.0]), ([1.0, 1.0], [1.0, number]):
        with pytest.raises(InferenceFailed):
            cosine_similarity(*map(packed, pair))


def test_two_dimensional_tensor_is_read_as_one_row():
    rows: Any = packed([1.0, 2.0]).cast("B").cast("f", shape=[1, 2])

    embedding = read(render(0, rows, as_base64=False))

    assert embedding.embedding == [1.0, 2.0]


def test_16_vectors_take_at_most_2_ms_as_base64():
    """Each vector has 4,096 numbers. docs/embeddings.md states this CPU time."""
    vector = packed([0.1] * 4096)

    def all_vectors() -> float:
        begin = time.process_time()
        pooled_list([render(index, vector, as_base64=True) for index in range(16)], {})
        return time.process_time() - begin

    assert min(all_vectors() for _ in range(20)) < budget(0.002)


SIMILARITIES = [
    ([1.0, 0.0], [2.0, 0.0], 1.0),
    ([1.0, 0.0], [0.0, 3.0], 0.0),
    ([1.0, 1.0], [-1.0, -1.0], -1.0),
    ([0.0, 0.0], [1.0, 1.0], 0.0),
]


@pytest.mark.parametrize(("one", "other", "expected"), SIMILARITIES)
def test_cosine_similarity_ignores_the_length(one, other, expected):
    """A vector of zeros has similarity 0 to every vector."""
    assert cosine_similarity(packed(one), packed(other)) == pytest.approx(expected)
