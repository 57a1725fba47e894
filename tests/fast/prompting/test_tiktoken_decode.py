import base64
from pathlib import Path

import pytest

from openai_frontend.errors import InvalidRequest
from openai_frontend.prompting import token_bytes

TOKENS = [b"Hel", b"lo", " wörld".encode()[:3], " wörld".encode()[3:]]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """Return a tiktoken vocabulary file; its third and fourth token share a character."""
    path = tmp_path / "tiny.tiktoken"
    lines = [base64.b64encode(token) + b" %d" % at for at, token in enumerate(TOKENS)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_bytes_are_joined_before_decoding(vocabulary):
    text = token_bytes.read_tiktoken(vocabulary).decode([0, 1, 2, 3], param="input")

    assert text == "Hello wörld"


def test_incomplete_character_is_replaced(vocabulary):
    """Clients may cut a list of tokens within a character."""
    assert token_bytes.read_tiktoken(vocabulary).decode([0, 2], param="input") == "Hel w\ufffd"


def test_unknown_token_is_refused(vocabulary):
    """An id that OpenAI's tokenizer does not have; the error names its index."""
    with pytest.raises(InvalidRequest, match="unknown token 4") as refused:
        token_bytes.read_tiktoken(vocabulary).decode([0, 4], param="input[1]")

    assert refused.value.param == "input[1]"


@pytest.mark.parametrize("content", [b"", b"SGVs 0\nnonsense\n", b"SGVs zero\n", b"*** 0\n"])
def test_invalid_vocabulary_file_is_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="token"):
        token_bytes.read_tiktoken(path)
