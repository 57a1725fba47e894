import openai.types.embedding_create_params as embedding_params
import pytest
from pydantic import ValidationError

from schemas.embeddings import EmbeddingRequest

GIVEN = ["", "a", ["a", ""], [1], [[1], [2, 3]]]


def test_every_field_of_the_sdk():
    """Each field of openai-python's request is one of ours."""
    assert set(embedding_params.EmbeddingCreateParams.__annotations__) <= set(
        EmbeddingRequest.model_fields
    )


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_input(given):
    """Each of OpenAI's four forms is read as it is, without conversions."""
    assert EmbeddingRequest(model="m", input=given).input == given


@pytest.mark.parametrize("given", [[], [[]], ["a", 1], [1.0], [[1], "a"], None], ids=str)
def test_no_input(given):
    """Empty and mixed lists are none of them."""
    with pytest.raises(ValidationError):
        EmbeddingRequest(model="m", input=given)
