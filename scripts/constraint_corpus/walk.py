"""Random answers that a grammar allows, token by token with the demo model's tokenizer: what a
model without knowledge writes.
"""

import json
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from openai_frontend.engines.vllm.grammars.backends import tag_tokens
from openai_frontend.engines.vllm.grammars.patterns import LENGTH, repeat_bound_exceeded
from openai_frontend.engines.vllm.grammars.preprocess import GrammarSpec, prepare
from openai_frontend.engines.vllm.grammars.text_grammars import is_lark
from openai_frontend.generation import StructuredOutputs
from scripts.constraint_corpus.outcome import Answer
from tests.gateway_process import ROOT

_WEIGHTS = ROOT / "model_repository" / "demo" / "1" / "weights"
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
_CLOSERS = frozenset('"}])>/')
MAX_TOKENS = 400


class _Matcher(Protocol):
    def allowed(self) -> Any:
        """Which tokens may follow, as booleans."""

    def accept(self, token: int) -> bool: ...


class Grammars:
    """Compiles constraints as the engine does, for the demo model's vocabulary."""

    def __init__(self) -> None:
        import llguidance.hf
        import xgrammar
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(_WEIGHTS)
        self.size: int = json.loads((_WEIGHTS / "config.json").read_text())["vocab_size"]
        self._special_tokens = tag_tokens(tokenizer)
        self._info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=self.size)
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        # As in the engine: strings of bounded length allow control characters
        text = xgrammar.TokenizerInfo(
            [b"" if _CONTROL.search(each) else each for each in self._info.decoded_vocab],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=self.size,
            stop_token_ids=self._info.stop_token_ids,
        )
        self._counted = xgrammar.GrammarCompiler(text, max_threads=1, cache_enabled=False)
        self._guidance = llguidance.hf.from_tokenizer(tokenizer, n_vocab=self.size)
        self.pieces: list[bytes] = self._info.decoded_vocab
        self.ends = np.isin(np.arange(self.size), self._info.stop_token_ids)
        self.closers = np.array([_closes(piece) for piece in self.pieces])

    def walk(self, structured: StructuredOutputs) -> "Walk":
        """Raises ValueError, with the reason, for a constraint that the engine refuses."""
        ready = prepare(_spec(structured), self._special_tokens)
        try:
            compiled = self._compiled(ready)
        except RuntimeError as error:
            raise ValueError(f"does not compile: {error}") from None
        if compiled is not None:
            return Walk(self, partial(_XGrammar, compiled, self.size))
        grammar = _guidance_grammar(ready)
        _LLGuidance(self._guidance, grammar, self.size)  # raises for what it refuses
        return Walk(self, partial(_LLGuidance, self._guidance, grammar, self.size))

    def _compiled(self, ready: GrammarSpec) -> Any:
        """None if llguidance enforces it."""
        if ready.kind == "structural_tag":
            compiler = self._counted if LENGTH.search(ready.text) else self._compiler
            return compiler.compile_structural_tag(ready.text)
        if ready.kind == "grammar" and not is_lark(ready.text):
            return self._compiler.compile_grammar(ready.text)
        if ready.kind == "regex" and not repeat_bound_exceeded(ready.text):
            try:
                return self._compiler.compile_regex(ready.text)
            except RuntimeError:
                return None
        return None


class Walk:
    """Answers that one grammar allows."""

    def __init__(self, grammars: Grammars, matcher: Callable[[], _Matcher]) -> None:
        self._grammars = grammars
        self._matcher = matcher

    def answer(self, seed: int) -> Answer:
        """Ends and closing characters are preferred, so that most answers end."""
        chooser = random.Random(seed)
        grammars, matcher = self._grammars, self._matcher()
        text = b""
        for _ in range(MAX_TOKENS):
            allowed = matcher.allowed()
            ends = bool((allowed & grammars.ends).any())
            others = np.flatnonzero(allowed & ~grammars.ends)
            if ends and (not len(others) or chooser.random() < 0.7):
                return Answer(text.decode("utf-8", "replace"), finished=True)
            if not len(others):
                raise ValueError(f"nothing may follow {text!r}")
            token = self._chosen(others, chooser)
            if not matcher.accept(token):
                raise ValueError(f"{grammars.pieces[token]!r} was allowed after {text!r}")
            text += grammars.pieces[token]
        return Answer(text.decode("utf-8", "replace"), finished=False)

    def _chosen(self, allowed: Any, chooser: random.Random) -> int:
        closers = allowed[self._grammars.closers[allowed]]
        chosen = closers if len(closers) and chooser.random() < 0.4 else allowed
        return int(chosen[chooser.randrange(len(chosen))])


class _XGrammar:
    def __init__(self, compiled: Any, size: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, size)
        self._size = size

    def allowed(self) -> Any:
        if not self._matcher.fill_next_token_bitmask(self._mask):
            return np.ones(self._size, dtype=bool)
        return _bits(self._mask.numpy(), self._size)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))


class _LLGuidance:
    def __init__(self, tokenizer: Any, grammar: str, size: int) -> None:
        import llguidance
        import llguidance.numpy

        self._fill = llguidance.numpy.fill_next_token_bitmask
        self._matcher = llguidance.LLMatcher(tokenizer, grammar)
        if error := self._matcher.get_error():
            raise ValueError(error)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, size)
        self._size = size

    def allowed(self) -> Any:
        self._fill(self._matcher, self._mask)
        return _bits(self._mask, self._size)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))


def _bits(mask: Any, size: int) -> Any:
    return np.unpackbits(mask[0].view(np.uint8), bitorder="little")[:size].astype(bool)


def _closes(piece: bytes) -> bool:
    return bool(piece.strip()) and set(piece.decode("utf-8", "replace").strip()) <= _CLOSERS


def _guidance_grammar(ready: GrammarSpec) -> str:
    import llguidance

    make: dict[str, Callable[[str], Any]] = {
        "json": llguidance.LLMatcher.grammar_from_json_schema,
        "regex": llguidance.LLMatcher.grammar_from_regex,
        "grammar": llguidance.LLMatcher.grammar_from_lark,
    }
    return str(make[ready.kind](ready.text))


def _spec(structured: StructuredOutputs) -> GrammarSpec:
    if structured.json is not None:
        return GrammarSpec("json", json.dumps(structured.json))
    if structured.structural_tag is not None:
        return GrammarSpec("structural_tag", structured.structural_tag)
    if structured.regex is not None:
        return GrammarSpec("regex", structured.regex)
    raise AssertionError(structured)
