"""Token bitmasks of many grammars, filled together, equal those that vLLM fills one by one."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine

VOCABULARY = [*"abcdefghijklmnopqrstuvwxyz0123456789", *(f"a{i}" for i in range(60)), "<eos>"]
WORDS = -(-len(VOCABULARY) // 32)


def grammar(pattern: str, *, accepted: str = "") -> Any:
    import xgrammar
    from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[len(VOCABULARY) - 1])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_regex(pattern)
    made = XgrammarGrammar(
        vocab_size=len(VOCABULARY), matcher=xgrammar.GrammarMatcher(compiled), ctx=compiled
    )
    tokens = [VOCABULARY.index(each) for each in accepted.split()]
    assert made.accept_tokens("r", tokens)
    return made


def test_bitmasks_filled_together_equal_vllms():
    """One of the grammars has ended, and one belongs to another engine."""
    import torch

    from openai_frontend.engines.vllm.processes.grammar_masks import BatchedBitmaskMixin

    def fill(bitmask: torch.Tensor, row: int) -> None:
        bitmask[row].fill_(7)

    other = SimpleNamespace(is_terminated=lambda: False, fill_bitmask=fill)
    ended = grammar("a", accepted="a <eos>")
    grammars = [grammar("[a-f]+"), other, ended, grammar("x[0-9]", accepted="x")]
    together = torch.zeros((len(grammars), WORDS), dtype=torch.int32)
    alone = torch.zeros_like(together)

    BatchedBitmaskMixin()._fill(grammars, together)

    for row, each in enumerate(grammars):
        if each.is_terminated():
            alone[row].fill_(-1)
        else:
            each.fill_bitmask(alone, row)
    assert together.tolist() == alone.tolist()
    assert len({tuple(row) for row in alone.tolist()}) == len(grammars)


class Slow:
    """A grammar of vLLM whose calls take CPU time."""

    ended = False

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s

    def _work(self) -> None:
        end_s = time.thread_time() + self.call_s
        while time.thread_time() < end_s:
            pass

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self._work()
        return True

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        self._work()

    def is_terminated(self) -> bool:
        return self.ended


def limited(call_s: float, together: Any = None) -> Any:
    from openai_frontend.engines.vllm.processes.grammar_masks import TimeSpent, timed_class

    made = timed_class(Slow)(call_s)
    made.spent, made.together = TimeSpent(), together or TimeSpent()
    return made


def test_grammar_that_takes_too_long_ends_its_request():
    """A whole answer is kept, however long it took."""
    slow, usual, ended = limited(0.2), limited(0.0), limited(1.1)
    ended.ended = True
    steps = 0
    while slow.accept_tokens("r", [1]):
        slow.fill_bitmask(None, 0)
        steps += 1

    assert 2 <= steps <= 3
    assert slow.is_too_slow
    assert all(usual.accept_tokens("r", [1]) for _ in range(100))
    assert ended.accept_tokens("r", [1])
    assert not usual.is_too_slow
    assert not ended.is_too_slow


def test_equal_grammars_share_a_limit():
    """Neither choices of a request nor further requests make it larger."""
    from openai_frontend.engines.vllm.processes.grammar_masks import TimeSpent

    together = TimeSpent()
    steps = 0
    for _ in range(10):
        one = limited(0.2, together)
        while one.accept_tokens("r", [1]):
            steps += 1
        assert one.is_too_slow

    assert 4 <= steps <= 6


def test_grammars_of_both_engines_are_limited():
    from vllm.v1.structured_output.backend_guidance import GuidanceGrammar
    from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

    from openai_frontend.engines.vllm.processes.grammar_masks import TimeSpent, timed

    made = timed(grammar("[a-f]+"), TimeSpent())
    assert isinstance(made, XgrammarGrammar)
    assert made.accept_tokens("r", [VOCABULARY.index("a")])
    assert made.spent.tokens == made.together.tokens == 1
    other = timed(GuidanceGrammar(ll_matcher=None, ll_tokenizer=None, vocab_size=1), TimeSpent())
    assert isinstance(other, GuidanceGrammar)
    assert other.spent.cpu_s == 0


def test_batch_that_takes_long_is_filled_and_timed_one_by_one(monkeypatch: pytest.MonkeyPatch):
    import torch

    from openai_frontend.engines.vllm.processes import grammar_masks

    scheduler = grammar_masks.BatchedBitmaskMixin()
    grammars = [grammar_masks.timed(grammar("[a-f]+"), grammar_masks.TimeSpent()), limited(0.03)]
    bitmask = torch.zeros((2, WORDS), dtype=torch.int32)
    scheduler._fill(grammars, bitmask)
    assert grammars[0].spent.cpu_s == 0  # filled in the batch
    first = bitmask.tolist()

    scheduler._fill(grammars, bitmask)
    assert grammars[0].spent.cpu_s > 0
    assert bitmask.tolist() == first

    spent_s = grammars[0].spent.cpu_s
    monkeypatch.setattr(grammar_masks, "_SLOW_BATCH_S", 10)
    scheduler._fill(grammars, bitmask)  # the last one was slow
    scheduler._fill(grammars, bitmask)
    assert grammars[0].spent.cpu_s >= spent_s
    assert not scheduler._is_slow
