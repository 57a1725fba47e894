import base64
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.errors import InferenceFailed
from openai_frontend.serving.output.vectors import cosine_similarity, embedding_list, render
from schemas.embeddings import Embedding
from tests.cpu_time import budget

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def packed(numbers: list[float]) -> memoryview:
    return memoryview(struct.pack(f"<{len(numbers)}f", *numbers))


def read(rendered: bytes) -> Embedding:
    """The bytes, as the schema reads them."""
    return Embedding.model_validate_json(rendered)


@given(FLOATS)
def test_numbers(numbers):
    """Each float32 comes back as exactly the float32 that it was."""
    embedding = read(render(7, packed(numbers), as_base64=False))

    assert bytes(packed(list(embedding.embedding))) == bytes(packed(numbers))  # type: ignore[arg-type]
    assert (embedding.object, embedding.index) == ("embedding", 7)


@given(FLOATS)
def test_base64(numbers):
    """Base64 holds the tensor's own bytes, little-endian float32."""
    embedding = read(render(0, packed(numbers), as_base64=True))

    assert bytes(packed(numbers)) == base64.b64decode(str(embedding.embedding))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("as_base64", [False, True])
def test_no_number(number, as_base64):
    """A model that makes a NaN has failed, whichever form could carry it."""
    with pytest.raises(InferenceFailed):
        render(0, packed([1.0, number]), as_base64=as_base64)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_no_angle(number):
    """A vector that is none is not like another one."""
    for pair in ([1.0, number], [1.0, 1.0]), ([1.0, 1.0], [1.0, number]):
        with pytest.raises(InferenceFailed):
            cosine_similarity(*map(packed, pair))


def test_any_layout_of_memory():
    """A tensor of floats in two dimensions is read as one row of them."""
    rows: Any = packed([1.0, 2.0]).cast("B").cast("f", shape=[1, 2])

    embedding = read(render(0, rows, as_base64=False))

    assert embedding.embedding == [1.0, 2.0]


def test_budget():
    """16 vectors of 4,096 numbers take no more than 2 ms of CPU as base64 (docs/embeddings.md)."""
    vector = packed([0.1] * 4096)

    def all_vectors() -> float:
        begin = time.process_time()
        embedding_list([render(index, vector, as_base64=True) for index in range(16)], {})
        return time.process_time() - begin

    assert min(all_vectors() for _ in range(20)) < budget(0.002)


SIMILARITIES = [
    ([1.0, 0.0], [2.0, 0.0], 1.0),
    ([1.0, 0.0], [0.0, 3.0], 0.0),
    ([1.0, 1.0], [-1.0, -1.0], -1.0),
    ([0.0, 0.0], [1.0, 1.0], 0.0),
]


@pytest.mark.parametrize(("one", "other", "expected"), SIMILARITIES)
def test_cosine_similarity(one, other, expected):
    """The angle alone counts, never the length; a vector of zeros is like nothing."""
    assert cosine_similarity(packed(one), packed(other)) == pytest.approx(expected)
