"""llama-index, in an environment of its own: OpenAILike and its embeddings."""

from typing import Any

import pytest

from tests.clients.environments import Environment

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def found(url: str) -> Any:
    """What llama-index understood."""
    return Environment("sdks").ask("ask_llama_index", url)


def test_chat_answers(found):
    """chat() gives the model's answer."""
    assert "Triton" in found["chat"]


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_a_stream_adds_up_to_the_answer(found, kind):
    """The deltas of a greedy stream are the greedy answer, for chat and for completions."""
    assert found[f"{kind}_stream"] == found[kind] != ""


def test_texts_become_vectors(found):
    """A batch that is split into requests gives a vector for each text, in its order."""
    assert [len(vector) for vector in found["batch"]] == [384] * 16
    assert found["batch"][0] == pytest.approx(found["batch"][14], abs=1e-4)


def test_a_line_break_is_a_space(found):
    """llama-index replaces line breaks by spaces: the query's vector is that of the text."""
    assert found["query"] == pytest.approx(found["batch"][0], abs=1e-4)
