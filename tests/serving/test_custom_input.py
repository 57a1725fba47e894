"""What a custom tool is called with comes out of a JSON object, however it is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_frontend.serving.custom_input import CustomInput

AWKWARD = st.text('a"\\/\n\t\x00\u2028\xe9\U0001f600\ud83d\ude00{}:')


def replaced(text: str) -> str:
    """JSON can spell halves of characters, which no answer can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read(pieces: list[str]) -> str:
    custom = CustomInput()
    return "".join(map(custom.feed, pieces)) + custom.finish()


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted(place for place in places if place < len(text))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(st.text() | AWKWARD, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 60)))
def test_the_text_of_the_object(text, ascii_only, indent, places):
    """The input is the string's value, in whatever pieces the object comes."""
    written = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)

    assert replaced(text) == read(cut(written, places))


def test_text_comes_at_once():
    """What is known of the text is told, not held to its end."""
    custom = CustomInput()

    assert [custom.feed(piece) for piece in ('{"input": "', "a", "b", "\\")] == ["", "a", "b", ""]


OTHER = [
    ('{"x": 1}', '{"x": 1}'),
    ('{"input": 3}', '{"input": 3}'),
    ('{"input": "a", "more": "b"}', "a"),
    ('{"inp', '{"inp'),
    ('{"input": "a\\', "a"),
    ('{"input": "a\\u00', "a"),
    ('{"input": "\\ud83d', "\ufffd"),
    ('{"input": "a\\qb"}', "a\\qb"),
    ('{"input": "a\\u12zb"}', "a\\u12zb"),
    (" " * 300 + "x" * 300, " " * 300 + "x" * 300),
    ("", ""),
]


@pytest.mark.parametrize(("written", "text"), OTHER)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_what_models_write_instead(written, text, size):
    """An object of another form is the input itself; a broken one is read as far as it goes."""
    assert text == read([written[at : at + size] for at in range(0, len(written), size)])
