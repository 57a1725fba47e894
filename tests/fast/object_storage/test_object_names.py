"""No object is written outside of its model's folder."""

from pathlib import PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openai_frontend.object_storage import object_names
from tests.examples import scaled


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "../x", "1/../../x", "/etc/passwd", "1//x", "1/", "a\\b", "..\\x", "a\0b",
        "a\nb", "a\x7fb", "\u2028", "\ud800", "x" * 256, "\u00e4" * 128,
    ],
)  # fmt: skip
def test_names_that_are_refused(path):
    assert object_names.problem(path) is not None


@pytest.mark.parametrize(
    "path", ["config.pbtxt", "1/model.onnx", "1/a b", "1/%2e%2e/x", "...", "~", "x" * 255, "\u00e4"]
)
def test_names_that_are_files(path):
    assert object_names.problem(path) is None


@settings(max_examples=scaled(300), deadline=None)
@given(st.text(st.sampled_from("./\\ab\0\n~%"), max_size=12) | st.text(max_size=20))
@example("a/../b")
def test_accepted_names_stay_below_their_folder(path):
    """An accepted name is a relative path whose normal form is itself."""
    if object_names.problem(path) is None:
        parts = PurePosixPath("/models/m", path).parts
        assert parts[:3] == ("/", "models", "m")
        assert len(parts) > 3
        assert ".." not in parts
        assert str(PurePosixPath(path)) == path
        assert path.encode().isascii() or path.isprintable()


def test_file_that_is_also_a_folder():
    assert object_names.clash(["1/a", "1"], {"1", "2"}) == "1"
    assert object_names.clash(["1/a"], {"1"}) is None
