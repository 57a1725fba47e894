import openai.types.embedding_create_params as embedding_params
import pytest
from pydantic import ValidationError

from schemas.embeddings import EmbeddingRequest

GIVEN = ["", "a", ["a", ""], [1], [[1], [2, 3]]]


def test_schema_has_every_field_of_openai_python():
    assert set(embedding_params.EmbeddingCreateParams.__annotations__) <= set(
        EmbeddingRequest.model_fields
    )


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_each_input_form_is_read_unchanged(given):
    """OpenAI defines four forms."""
    assert EmbeddingRequest(model="m", input=given).input == given


@pytest.mark.parametrize("given", [[], [[]], ["a", 1], [1.0], [[1], "a"]], ids=str)
def test_empty_and_mixed_lists_are_refused(given):
    with pytest.raises(ValidationError):
        EmbeddingRequest(model="m", input=given)
