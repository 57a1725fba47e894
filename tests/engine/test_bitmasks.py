"""Masks of many grammars at once: the same as vLLM's own, one by one."""

import json
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


def test_filled_together():
    """Also one that has ended, and one of another engine."""
    import torch

    from openai_frontend.engines.vllm.bitmasks import FillsTogether

    def fill(bitmask: torch.Tensor, row: int) -> None:
        bitmask[row].fill_(7)

    other = SimpleNamespace(is_terminated=lambda: False, fill_bitmask=fill)
    ended = grammar("a", accepted="a <eos>")
    grammars = [grammar("[a-f]+"), other, ended, grammar("x[0-9]", accepted="x")]
    together = torch.zeros((len(grammars), WORDS), dtype=torch.int32)
    alone = torch.zeros_like(together)

    FillsTogether()._fill(grammars, together)

    for row, each in enumerate(grammars):
        if each.is_terminated():
            alone[row].fill_(-1)
        else:
            each.fill_bitmask(alone, row)
    assert together.tolist() == alone.tolist()
    assert len({tuple(row) for row in alone.tolist()}) == len(grammars)


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "free", "a"], ["free"]], ids=str)
def test_applied_in_one_go(order: list[str]):
    """In the order of the batch, whoever is in it; others are left alone."""
    import torch
    from vllm.v1.structured_output.utils import apply_grammar_bitmask

    from openai_frontend.engines.vllm import bitmasks

    generator = torch.Generator().manual_seed(1)
    masks = torch.randint(-(2**31), 2**31, (3, WORDS), generator=generator).to(torch.int32)
    given = (
        SimpleNamespace(scheduled_spec_decode_tokens={}),
        SimpleNamespace(
            structured_output_request_ids=["b", "a", "c"], grammar_bitmask=masks.numpy()
        ),
        SimpleNamespace(req_ids=order),
    )
    logits = torch.randn((len(order), len(VOCABULARY)), generator=generator)
    expected = logits.clone()

    bitmasks.apply(*given, logits)

    apply_grammar_bitmask(*given, expected)
    assert json.dumps(logits.tolist()) == json.dumps(expected.tolist())
    assert (logits.isinf().sum() > 0) == (order != ["free"])
