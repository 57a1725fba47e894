"""Extracts the input of a custom tool from a JSON object, for every split of the object."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.serving.output.custom_input import CustomInputDecoder
from tests.cpu_time import budget

AWKWARD = st.text('a"\\/\n\t\x00\u2028\xe9\U0001f600\ud83d\ude00{}:')


def replaced(text: str) -> str:
    """Replace lone surrogates: JSON can escape them, but an answer cannot contain them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read(pieces: list[str]) -> str:
    custom = CustomInputDecoder()
    return "".join(map(custom.feed, pieces)) + custom.finish()


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place for place in places if place < len(text))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(st.text() | AWKWARD, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 60)))
def test_input_is_the_value_of_the_string(text, ascii_only, indent, places):
    """Every split of the object gives the same text."""
    written = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)

    assert replaced(text) == read(cut(written, places))


@pytest.mark.parametrize(
    "text", ["\\ud83d", "a\\ud83d\\ude00b", "\\\\ud83d", "\U0001f600\\", "\ud83d\ude00"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_may_contain_surrogate_escapes(text, ascii_only):
    """Code can contain such an escape. It stays text for every split."""
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)

    cuts = [cut(written, [at, more]) for at in range(len(written)) for more in (at, at + 1, at + 6)]

    assert {replaced(text)} == {read(pieces) for pieces in cuts}


def test_invalid_escapes_take_linear_time():
    custom = CustomInputDecoder()
    custom.feed('{"input": "')

    begun_s = process_time()
    custom.feed("\\x" * 64 * 1024)

    assert process_time() - begun_s < budget(0.5)  # took 1.4 s when each escape copied the rest


def test_text_is_returned_as_soon_as_it_is_known():
    custom = CustomInputDecoder()

    assert [custom.feed(piece) for piece in ('{"input": "', "a", "b", "\\")] == ["", "a", "b", ""]


OTHER = [
    ('{"x": 1}', '{"x": 1}'),
    ('{"input": 3}', '{"input": 3}'),
    ('{"input": "a", "more": "b"}', "a"),
    ('{"inp', '{"inp'),
    ('{"input": "a\\', "a"),
    ('{"input": "a\\u00', "a"),
    ('{"input": "\\ud83d', "\ufffd"),
    ('{"input": "\\ud83d\\u00', "\ufffd"),
    ('{"input": "a\\qb"}', "a\\qb"),
    ('{"input": "a\\u12zb"}', "a\\u12zb"),
    (" " * 300 + "x" * 300, " " * 300 + "x" * 300),
    ("", ""),
]


@pytest.mark.parametrize(("written", "text"), OTHER)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_other_output_than_the_object_is_read_as_the_input(written, text, size):
    """An object of another form is the input itself. A broken object is read up to the error."""
    assert text == read([written[at : at + size] for at in range(0, len(written), size)])
