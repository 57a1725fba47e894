"""Random answers that a grammar allows, generated character by character without a model."""

import random
import string
from typing import Any, Protocol

_CLOSERS = '"}])>/'
_ASCII = sorted(map(ord, string.printable[:-2]))


class PossibleAnswers(Protocol):
    """The answers that a grammar allows, whichever library enforces it."""

    def takes(self, text: str) -> bool: ...

    def make(self, seed: int, *, begin: str = "", limit: int = 4000) -> str: ...


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
        end = len(self._vocabulary) - 1
        if end in allowed and chooser.random() < 0.8:
            return end
        return _chosen(allowed, {i for i in allowed if self._vocabulary[i] in _CLOSERS}, chooser)


class LLGuidanceAnswers:
    """Generates and accepts answers that llguidance allows for a Lark grammar or JSON schema."""

    def __init__(self, grammar: str) -> None:
        import llguidance

        self._grammar = grammar
        self._bytes = llguidance.LLTokenizer("byte")
        self._matcher: Any = llguidance.LLMatcher

    def takes(self, text: str) -> bool:
        """Return whether the grammar accepts the whole text."""
        matcher = self._begun(text)
        return matcher is not None and matcher.is_accepting()

    def make(self, seed: int, *, begin: str = "", limit: int = 4000) -> str:
        """Return an answer of ASCII characters that starts with the text. Closing characters are
        preferred, so it ends soon.
        """
        chooser = random.Random(seed)
        matcher, text = self._begun(begin), begin
        assert matcher is not None, begin
        while len(text) < limit:
            mask = matcher.compute_bitmask()
            allowed = [code for code in _ASCII if mask[code // 8] >> (code % 8) & 1]
            if matcher.is_accepting() and (not allowed or chooser.random() < 0.8):
                return text
            code = _chosen(allowed, {c for c in allowed if chr(c) in _CLOSERS}, chooser)
            text += chr(code)
            assert matcher.consume_token(code)
        raise AssertionError(f"no end after {limit} characters: {text[:500]}")

    def _begun(self, text: str) -> Any:
        """Return a matcher that has accepted the text; None if the grammar does not allow it."""
        matcher = self._matcher(self._bytes, self._grammar)
        taken = matcher.consume_tokens(list(text.encode()))
        assert taken or not matcher.get_error().startswith("Grammar"), matcher.get_error()
        return matcher if taken else None


def _chosen(allowed: list[int], closers: set[int], chooser: random.Random) -> int:
    assert allowed, "the grammar allows nothing more and has no end"
    return chooser.choice(sorted(closers) if closers and chooser.random() < 0.5 else allowed)
