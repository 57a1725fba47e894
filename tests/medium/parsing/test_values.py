"""Values in JSON, Python and Gemma's spelling become JSON, or are refused."""

import ast
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openai_frontend.parsing.values import JSON, MAX_DEPTH, PYTHON, Dialect, bare_dialect, converted


def in_json(text: str, dialect: Dialect) -> str:
    """The value, which must be one."""
    value = converted(text, dialect)
    assert value is not None
    return value


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_json_is_unchanged(value: Any) -> None:
    """JSON is passed on to the character, in any style."""

    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert text == converted(text, JSON)


@given(values)
@example({"a": ["it's", 'a "b"', "\\n", "\x00\x7f", "\U0001f600"]})
def test_python_becomes_json(value: Any) -> None:
    """What Python prints for a value parses to that value."""

    assert value == json.loads(in_json(repr(value), PYTHON))


PYTHON_TEXTS = [
    r"'\x41\u00e9\U0001F600\101\0'",
    r"'a\'b\"c\\d\n\t\a\v'",
    "'two \\\nlines'",
    "'''triple 'quoted' '''",
    '"""a"b"""',
    "(1, 2,)",
    "{'a': (), 'b': [1., .5, -0.0, 1e3], }",
    "[True, False, None]",
]


@pytest.mark.parametrize("text", PYTHON_TEXTS)
def test_python_spellings(text: str) -> None:
    """Escapes, quotes, tuples and short floats mean what they mean in Python."""

    expected = json.loads(json.dumps(ast.literal_eval(text)))

    assert expected == json.loads(in_json(text, PYTHON))


@pytest.mark.parametrize("text", [r"'\ud83d'", r"'\xZZ'", r"'\U99999999'", r"'\q'"])
def test_invalid_escapes(text: str) -> None:
    """A backslash that escapes nothing is literal; a lone surrogate stays escaped."""

    json.loads(in_json(text, PYTHON)).encode("utf-8", "surrogatepass")
    assert converted(text, PYTHON).isascii()


SLOPPY = [('"a\nb"', "a\nb"), ('"\\x"', "\\x"), ('"\\u12"', "\\u12"), ('"it\\\'s"', "it\\'s")]


@pytest.mark.parametrize(("text", "value"), SLOPPY)
def test_sloppy_json_strings(text: str, value: str) -> None:
    """Strings with raw line breaks or unknown escapes become valid."""

    assert json.loads(in_json(text, JSON)) == value


BAD_JSON = ["", "nul", "01", "1.", ".5", "+1", "NaN", "'a'", "[1,]", "{'a': 1}", "{a: 1}", '"a']
BAD_JSON += ["[1 2]", '{"a" 1}', '{"a": }', "[", "1 2", "}", "-", "1e", "tru" * 200, "1" * 600]


@pytest.mark.parametrize("text", BAD_JSON)
def test_invalid_json(text: str) -> None:
    """Anything else is refused."""

    assert converted(text, JSON) is None


@pytest.mark.parametrize(
    "text",
    ["f(x)", "1 + 1", "__import__('os')", "a.b", "{1: 2}", "{1, 2}", "'a' 'b'", "1_000", "1j"],
)
def test_python_expressions(text: str) -> None:
    """Only literals are values: no names, calls or sums, and only string keys."""

    assert converted(text, PYTHON) is None


def test_gemma_spelling() -> None:
    """Bare keys, and strings between tokens, with any content."""

    text = '{city:<|"|>São "Paulo"\\n<|"|>,n:-1.5,<|"|>a b<|"|>:[true,null,{}]}'

    assert json.loads(in_json(text, bare_dialect('<|"|>'))) == {
        "city": 'São "Paulo"\\n',
        "n": -1.5,
        "a b": [True, None, {}],
    }


@pytest.mark.parametrize("dialect", [JSON, PYTHON])
def test_depth_limit(dialect: Any) -> None:
    """Values nest up to the limit and no deeper."""

    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    assert deepest == converted(deepest, dialect)
    assert converted(f"[{deepest}]", dialect) is None
