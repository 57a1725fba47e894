"""Fixtures of a tiny tokenizer, built once."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from openai_frontend.prompting import tokenizer
from tests.fast.prompting import tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session", params=["fastokens", "tokenizers"])
def tiny(tokenizer_folder: Path, request: pytest.FixtureRequest) -> tokenizer.Tokenizer:
    """With either library, which must give the same prompts."""
    if request.param == "tokenizers":
        return tokenizer.load(tokenizer_folder)
    pytest.importorskip("fastokens")  # it has no build for some platforms
    loaded = tokenizer.load(tokenizer_folder, use_fastokens=True)
    assert loaded.quick is not None
    return loaded


@pytest.fixture(scope="session")
def tiny_fast(tiny: tokenizer.Tokenizer) -> FastTokenizer:
    return tiny.fast
