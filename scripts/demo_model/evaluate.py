"""Scores a model: greedy answers to prompts that were or were not of the training text's kind."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .exchange import Exchange


@dataclass(frozen=True)
class Score:
    """How many of the prompts of each kind were answered with a right answer, to the letter."""

    right: Counter[str]
    asked: Counter[str]
    wrong: tuple[tuple[Exchange, str], ...]

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.right[kind]}/{n}" for kind, n in self.asked.items())
        return f"{self.right.total()} of {self.asked.total()} ({kinds})"


def prompt_ids(tokenizer: PreTrainedTokenizerFast, exchange: Exchange) -> list[int]:
    """The prompt as a chat request makes it."""
    text = tokenizer.apply_chat_template(
        list(exchange.messages),
        tools=list(exchange.tools) or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    return cast(list[int], tokenizer.encode(text, add_special_tokens=False))


def answer(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, ids: list[int], limit: int = 220
) -> tuple[str, float]:
    """The greedy answer, and the smallest lead that any of its tokens had over the second best."""
    cache, fed, written, lead = None, ids, list[int](), float("inf")
    while len(written) < limit:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        best = output.logits[0, -1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        token = int(best.indices[0])
        if token == tokenizer.eos_token_id:
            break
        written.append(token)
        fed = [token]
    return cast(str, tokenizer.decode(written, skip_special_tokens=True)), lead


def score(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, exchanges: Sequence[Exchange]
) -> Score:
    """Ask everything, one after the other."""
    right: Counter[str] = Counter()
    wrong = []
    for exchange in exchanges:
        text, _ = answer(model, tokenizer, prompt_ids(tokenizer, exchange))
        if text in exchange.answers:
            right[exchange.kind] += 1
        else:
            wrong.append((exchange, text))
    return Score(right, Counter(exchange.kind for exchange in exchanges), tuple(wrong))
