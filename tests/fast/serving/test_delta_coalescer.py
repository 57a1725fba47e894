from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.output.stream import DeltaCoalescer
from tests.fast.serving.fake_model import last


def fed(tokens: int, deltas: Sequence[CompletionDelta]) -> list[CompletionDelta]:
    interval = DeltaCoalescer(tokens)
    return [due for delta in deltas if (due := interval.feed(delta)) is not None]


def test_first_token_is_sent_immediately():
    """The others come in groups. The last token flushes the buffer."""
    deltas = [CompletionDelta(letter, token_ids=[ord(letter)]) for letter in "abcdef"]

    due = fed(3, [*deltas, last("g")])

    assert [delta.text for delta in due] == ["a", "bcd", "efg"]
    assert [list(delta.token_ids) for delta in due] == [[97], [98, 99, 100], [101, 102]]


def test_delta_of_several_tokens_counts_each_token():
    deltas = [CompletionDelta("a", token_ids=[1]), CompletionDelta("bc", token_ids=[2, 3])]

    assert [delta.text for delta in fed(2, deltas)] == ["a", "bc"]


@given(st.lists(st.text("ab", max_size=2), max_size=12), st.integers(1, 5))
def test_all_text_arrives_in_order(texts, tokens):
    """Every interval gives the same text, with the finish reason last."""
    due = fed(tokens, [*map(CompletionDelta, texts), last("z")])

    assert "".join(delta.text for delta in due) == "".join(texts) + "z"
    assert [delta.finish_reason for delta in due if delta.finish_reason] == ["stop"]
    assert due[-1].counts is not None
