"""Random answers that the engine's grammar backends allow, token by token, with the demo model's
tokenizer and without a model.

`walker().answer(structured_outputs, seed)` prepares a constraint as a vLLM engine does (a refusal
is its ValueError), compiles it with the backend that the engine would use, and follows tokens that
its masks allow. The result is an answer that a model could write: for a schema, it must be JSON
that matches the schema; for a regular expression, text that it matches.
"""

import functools
import random
import warnings
from types import SimpleNamespace
from typing import Any

from tests.gateway_process import ROOT

_ENDS = ('"', "}", "]", '"}', "</")


class DeadEnd(AssertionError):
    """The grammar allows no token and no end: the engine would fail the request."""


class GrammarWalker:
    """Compiles constraints, and walks through them."""

    def __init__(self, tokenizer: Any) -> None:
        from openai_frontend.engines.vllm.processes.scheduler import AutoBackend

        config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(
                disable_any_whitespace=False, disable_additional_properties=False
            ),
            model_config=None,
            speculative_config=None,
        )
        self._backend: Any = AutoBackend(config, tokenizer, len(tokenizer))
        self._tokens = [tokenizer.decode([i]) for i in range(len(tokenizer))]
        self._end = tokenizer.eos_token_id
        self.tokenizer = tokenizer
        self._decode = tokenizer.decode

    def grammar(self, structured_outputs: Any) -> Any:
        """The compiled grammar of vLLM's StructuredOutputsParams. Raises ValueError for a refused
        one.
        """
        from vllm.v1.structured_output.request import get_structured_output_key

        from openai_frontend.engines.vllm.grammars.backends import prepare_constraint, tag_tokens

        ready = prepare_constraint(structured_outputs, tag_tokens(self.tokenizer) or {})
        kind, text = get_structured_output_key(ready)
        with warnings.catch_warnings():
            # vLLM sets an option of xgrammar that is obsolete
            warnings.filterwarnings("ignore", "max_rollback_tokens", DeprecationWarning)
            return self._backend.compile_grammar(kind, text)

    def answer(self, structured_outputs: Any, seed: int, *, most: int = 400) -> str:
        """A random answer. Raises DeadEnd, and TimeoutError after so many tokens."""
        return self.walk(self.grammar(structured_outputs), seed, most=most)

    def walk(self, grammar: Any, seed: int, *, most: int = 400) -> str:
        """A random answer of a compiled grammar, which is at its start again afterwards."""
        chooser = random.Random(seed)
        tokens: list[int] = []
        while len(tokens) < most:
            allowed = self.allowed(grammar)
            if not allowed:
                raise DeadEnd(self._decode(tokens))
            token = self._chosen(allowed, chooser, late=len(tokens) > most // 4)
            if token == self._end:
                grammar.reset()
                return str(self._decode(tokens))
            if not grammar.accept_tokens("walk", [token]):
                raise DeadEnd(f"{self._decode(tokens)!r}, then {self._tokens[token]!r}")
            tokens.append(token)
        raise TimeoutError(f"no end after {most} tokens: {self._decode(tokens)[:300]!r}")

    def allowed(self, grammar: Any) -> list[int]:
        """The tokens that the grammar allows next."""
        mask = self._backend.allocate_token_bitmask(1)
        grammar.fill_bitmask(mask, 0)
        words = mask[0].tolist()
        return [i for i in range(len(self._tokens)) if words[i // 32] >> (i % 32) & 1]

    def _chosen(self, allowed: list[int], chooser: random.Random, *, late: bool) -> int:
        """Closing tokens are likelier, so that answers end."""
        rest = [token for token in allowed if token != self._end]
        if len(rest) < len(allowed) and (late or not rest or chooser.random() < 0.5):
            return int(self._end)
        ends = [token for token in rest if self._tokens[token].startswith(_ENDS)]
        return chooser.choice(ends if ends and chooser.random() < (0.9 if late else 0.3) else rest)


@functools.cache
def walker() -> GrammarWalker:
    """A walker with the demo model's tokenizer."""
    from transformers import AutoTokenizer

    return GrammarWalker(AutoTokenizer.from_pretrained(ROOT / "model_repository/demo/1/weights"))
