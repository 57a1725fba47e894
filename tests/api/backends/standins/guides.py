"""Guided decoding with TensorRT-LLM's four types of guides."""

from pathlib import Path
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from tests.api.backends.standins.llama import Array

KINDS = ("json", "json_schema", "regex", "ebnf_grammar")


class Guides:
    """Makes guides for one vocabulary."""

    def __init__(self, folder: Path, end_id: int) -> None:
        text = (folder / "tokenizer.json").read_text()
        self._tokenizer = LLTokenizer(text, eos_token=end_id)

    def guide(self, kind: str, text: str) -> "Guide":
        """Raises ValueError for an unknown type or an invalid guide."""
        if kind not in KINDS:
            raise ValueError(f"unknown guide type {kind!r}")
        grammar = _grammar(kind, text)
        matcher = LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return Guide(matcher, self._tokenizer.vocab_size)


class Guide:
    """The position of one answer in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher = matcher
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary_size)

    def restrict(self, logits: Array) -> None:
        """Sets the logits of tokens that must not follow to minus infinity."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(logits)]
        logits[allowed == 0] = -np.inf

    def take(self, token_id: int) -> None:
        """Advances by this token."""
        self._matcher.consume_token(token_id)


def _grammar(kind: str, text: str) -> str:
    if kind in ("json", "json_schema"):  # a small model would generate spaces for ever
        schema = text if kind == "json_schema" else '{"type": "object"}'
        compact: Any = {"whitespace_flexible": False}
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=compact))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(text))
    return str(LLMatcher.grammar_from_lark(llguidance.gbnf_to_lark.gbnf_to_lark(text)))
