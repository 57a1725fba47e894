"""llama-index, in its own environment: OpenAILike and its embeddings."""

from typing import Any

import pytest

from tests import images
from tests.clients.environments import Environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(url: str) -> Any:
    """The results that llama-index parsed."""
    return Environment("sdks").ask("ask_llama_index", url, images.data_url(images.red_circle()))


def test_chat_answers(found):
    """chat() returns the model's answer."""
    assert "Triton" in found["chat"]


def test_model_sees_an_image(found):
    """An ImageBlock with a data URL."""
    assert "red" in found["image"]


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_stream_sums_to_the_answer(found, kind):
    """The joined deltas of a greedy stream equal the greedy answer, for chat and completions."""
    assert found[f"{kind}_stream"] == found[kind] != ""


def test_each_text_has_a_vector(found):
    """A batch split into several requests gives a vector per text, in order."""
    assert [len(vector) for vector in found["batch"]] == [384] * 16
    assert found["batch"][0] == pytest.approx(found["batch"][14], abs=1e-4)


def test_line_break_is_a_space(found):
    """llama-index replaces line breaks by spaces, so the query's vector equals the text's."""
    assert found["query"] == pytest.approx(found["batch"][0], abs=1e-4)
