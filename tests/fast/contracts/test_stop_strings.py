"""A text is cut at its first stop string, however it is split into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.contracts.stop_strings import StopStrings


def cut(pieces: list[str], stops: list[str], *, included: bool = False) -> tuple[str, str | None]:
    """Return the remaining text and the stop string at which it was cut."""
    texts = StopStrings(stops, included=included)
    told = [texts.feed(piece) for piece in pieces]
    return "".join([*told, texts.finish()]), texts.found


def test_stop_string_can_be_included() -> None:
    """`include_stop_str_in_output` keeps it, but nothing after it."""

    assert cut(["one E", "ND two"], ["END"], included=True) == ("one END", "END")


def test_only_possible_stop_strings_are_buffered() -> None:
    """Only the possible start of a stop string is delayed."""

    texts = StopStrings(["END"])
    assert [texts.feed(piece) for piece in ("one ", "E", "mpty", "EN")] == ["one ", "", "Empty", ""]
    assert texts.finish() == "EN"


@given(
    st.lists(st.text("ab", min_size=0, max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_result_is_independent_of_pieces(pieces: list[str], stops: list[str]) -> None:
    """The cut is where the first stop string ends; if several end there, the longest counts."""

    text = "".join(pieces)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, length, found = min(ends, default=(len(text), 0, None))
    assert cut(pieces, stops) == (text[: end + length], found)
