"""Trains by contrast: of a batch's sentences, each one's partner must be the nearest."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import BertModel, PreTrainedTokenizerFast

from scripts.demo_model.train import rate

from . import corpus
from .model import embed, new_model, train_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How the model is trained."""

    seed: int = 9001
    steps: int = 1_000
    batch: int = 48
    warm_up_steps: int = 100
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    temperature: float = 0.07


def train(recipe: Recipe) -> tuple[BertModel, PreTrainedTokenizerFast]:
    """Run all steps; the loss is logged every 200."""
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer(corpus.texts(recipe.seed, 40_000))
    model = new_model(tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    model.train()
    started, running = time.monotonic(), 0.0
    for step, pairs in enumerate(corpus.batches(recipe.seed, recipe.steps, recipe.batch)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate(step, recipe.warm_up_steps, recipe.steps)
        loss = _loss(model, tokenizer, pairs, recipe.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % 200 == 0:
            seconds = time.monotonic() - started
            log.info("step %d  loss %.4f  %.0f s", step + 1, running / 200, seconds)
            running = 0.0
    return model.eval(), tokenizer


def _loss(
    model: BertModel,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    temperature: float,
) -> torch.Tensor:
    """InfoNCE in both directions (https://arxiv.org/abs/1807.03748)."""
    firsts, seconds = zip(*pairs, strict=True)
    vectors = embed(model, tokenizer, [*firsts, *seconds])
    scores = vectors[: len(firsts)] @ vectors[len(firsts) :].T / temperature
    partners = torch.arange(len(firsts))
    cross_entropy = torch.nn.functional.cross_entropy
    return (cross_entropy(scores, partners) + cross_entropy(scores.T, partners)) / 2


@dataclass(frozen=True)
class Score:
    """Of all comparisons of a held-out sentence with one of its own subject and one of another."""

    right: int
    compared: int
    nearest: int
    sentences: int

    def __str__(self) -> str:
        return (
            f"{self.right / self.compared:.1%} of {self.compared:,} comparisons right; "
            f"the nearest is of the same subject for {self.nearest} of {self.sentences}"
        )


def score(model: BertModel, tokenizer: PreTrainedTokenizerFast) -> Score:
    """Compare every held-out sentence with every pair of one of its own subject and any other."""
    labelled = [(name, text) for name, texts in corpus.held_out().items() for text in texts]
    with torch.inference_mode():
        vectors = embed(model, tokenizer, [text for _, text in labelled])
    similarity = vectors @ vectors.T
    right = compared = nearest = 0
    for row, (name, _) in enumerate(labelled):
        same = torch.tensor([other == name for other, _ in labelled])
        own, others = (
            similarity[row][same.logical_and(torch.arange(len(same)) != row)],
            similarity[row][~same],
        )
        right += int((own[:, None] > others[None, :]).sum())
        compared += own.numel() * others.numel()
        nearest += int(own.max() > others.max())
    return Score(right, compared, nearest, len(labelled))
