"""Fixtures of a tiny tokenizer, built once."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from openai_frontend.prompting import tokenizer
from tests.unit.prompting import tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tiny(tokenizer_folder: Path) -> tokenizer.Tokenizer:
    return tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="session")
def tiny_fast(tiny: tokenizer.Tokenizer) -> FastTokenizer:
    return tiny.fast
