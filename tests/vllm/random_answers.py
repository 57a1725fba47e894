"""Random answers that a grammar allows, generated character by character without a model."""

import random
import string
from typing import Any

_CLOSERS = '"}])>/'


class RandomAnswers:
    """Generates answers as a model would that knows only the grammar."""

    def __init__(self, structural_tag: str) -> None:
        import xgrammar

        characters = sorted({*string.printable[:-2], *structural_tag, "é", "語"})
        self._xgrammar: Any = xgrammar
        self._vocabulary = [*characters, "<eos>"]
        info = xgrammar.TokenizerInfo(
            self._vocabulary,
            vocab_type=xgrammar.VocabType.RAW,
            stop_token_ids=[len(characters)],
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._grammar = compiler.compile_structural_tag(structural_tag)

    def takes(self, text: str) -> bool:
        """Return whether the grammar accepts the whole text."""
        matcher = self._matcher()
        return matcher.accept_string(text) and len(self._vocabulary) - 1 in self._next(matcher)

    def begins(self, text: str) -> bool:
        """Return whether an answer may start with the text."""
        return bool(self._matcher().accept_string(text))

    def make(self, seed: int, *, begin: str = "", limit: int = 4000) -> str:
        """Return an answer that starts with the text. Closing characters are preferred, so it ends
        soon.
        """
        chooser = random.Random(seed)
        matcher, text = self._matcher(), begin
        assert matcher.accept_string(begin), begin
        while len(text) < limit:
            token = self._chosen(self._next(matcher), chooser)
            if token == len(self._vocabulary) - 1:
                return text
            text += self._vocabulary[token]
            assert matcher.accept_token(token)
        raise AssertionError(f"no end after {limit} characters: {text[:500]}")

    def _matcher(self) -> Any:
        return self._xgrammar.GrammarMatcher(self._grammar)

    def _next(self, matcher: Any) -> list[int]:
        size = len(self._vocabulary)
        mask = self._xgrammar.allocate_token_bitmask(1, size)
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        return [token for token in range(size) if words[token // 32] >> (token % 32) & 1]

    def _chosen(self, allowed: list[int], chooser: random.Random) -> int:
        assert allowed, "the grammar allows nothing more and has no end"
        if len(self._vocabulary) - 1 in allowed and chooser.random() < 0.8:
            return len(self._vocabulary) - 1
        closers = [token for token in allowed if self._vocabulary[token] in _CLOSERS]
        return chooser.choice(closers if closers and chooser.random() < 0.5 else allowed)
