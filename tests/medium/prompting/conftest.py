"""The tiny tokenizer of tests/fast/prompting."""

from tests.fast.prompting.conftest import tiny, tiny_fast, tokenizer_folder

__all__ = ["tiny", "tiny_fast", "tokenizer_folder"]
