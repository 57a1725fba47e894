"""Token bitmasks of many grammars, filled together, equal those that vLLM fills one by one."""

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

    from openai_frontend.engines.vllm.processes.scheduler import BatchedBitmaskMixin

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
