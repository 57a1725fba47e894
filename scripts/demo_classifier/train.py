"""Trains the weights of the demo classifier by logistic regression over its sentences."""

import importlib.util
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scripts.demo_embedding import corpus
from scripts.demo_model.phrasing import expand

MODEL = Path(__file__).parents[2] / "model_repository" / "demo-classifier"
_SENTENCES = Path(__file__).with_name("sentences.toml")
_SAMPLES = 2_400  # sentences of each label, before duplicates are removed
_EVERYDAY = 4_800  # harmless sentences of the demo embedding model


@dataclass(frozen=True)
class Recipe:
    """How the weights are found."""

    seed: int = 9001
    steps: int = 600
    learning_rate: float = 20.0
    decay: float = 1e-5


@dataclass(frozen=True)
class Weights:
    """One row for each bucket of words, one column for each label."""

    weights: np.ndarray[Any, np.dtype[np.float16]]
    bias: np.ndarray[Any, np.dtype[np.float16]]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "weights.npz", weights=self.weights, bias=self.bias)


@cache
def scoring() -> ModuleType:
    """The module beside the model, which the stub process of Triton imports too."""
    spec = importlib.util.spec_from_file_location("demo_scoring", MODEL / "1" / "scoring.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(MODEL / "1" / "scoring.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def labels() -> list[str]:
    return (MODEL / "labels.txt").read_text("utf-8").split()


def _patterns() -> Mapping[str, Mapping[str, Sequence[str]]]:
    return tomllib.loads(_SENTENCES.read_text("utf-8"))


def held_out() -> dict[str, list[str]]:
    """Label -> sentences that training never sees; everyday ones are harmless."""
    found = {label: list(entry["held_out"]) for label, entry in _patterns().items()}
    for everyday in corpus.held_out().values():
        found["harmless"].extend(everyday)
    return found


def _sentences(seed: int) -> list[tuple[str, int]]:
    """Distinct sentences with the index of their label, without those that score the model."""
    rng = random.Random(seed)
    forbidden = {text for texts in held_out().values() for text in texts}
    names, found = corpus.names(), dict[str, int]()
    for at, label in enumerate(labels()):
        for _ in range(_SAMPLES):
            found[expand(rng, rng.choice(_patterns()[label]["sentences"]))] = at
    for _ in range(_EVERYDAY):
        found.setdefault(corpus.sentence(rng, rng.choice(names)), 0)
    return [(text, at) for text, at in found.items() if text not in forbidden]


def train(recipe: Recipe) -> Weights:
    """Full gradient descent: the only chance is in the choice of sentences.

    A sentence has a few of the buckets, each with the same value: sums over these take a tenth of
    the time of products with a matrix of all.
    """
    sentences = _sentences(recipe.seed)
    buckets = [scoring().buckets(text) for text, _ in sentences]
    counts = [len(each) for each in buckets]
    rows, columns = np.repeat(np.arange(len(counts)), counts), np.concatenate(buckets)
    values = np.repeat(np.maximum(1, counts) ** -0.5, counts)
    wanted = np.eye(len(labels()))[[at for _, at in sentences]]
    weights = np.zeros((scoring().BUCKETS, wanted.shape[1]))
    bias = np.zeros(wanted.shape[1])
    for _ in range(recipe.steps):
        logits = _sums(rows, values[:, None] * weights[columns], len(sentences)) + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (shares / shares.sum(axis=1, keepdims=True) - wanted) / len(sentences)
        gradient = _sums(columns, values[:, None] * error[rows], len(weights))
        weights -= recipe.learning_rate * (gradient + recipe.decay * weights)
        bias -= recipe.learning_rate * error.sum(axis=0)
    return Weights(weights.astype(np.float16), bias.astype(np.float16))


def _sums(
    indices: np.ndarray[Any, np.dtype[np.int64]],
    terms: np.ndarray[Any, np.dtype[np.float64]],
    length: int,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The sum of the terms of each index, for each column."""
    return np.stack([np.bincount(indices, column, length) for column in terms.T], axis=1)


@dataclass(frozen=True)
class Score:
    """Held-out sentences whose highest score is that of their label."""

    right: Mapping[str, int]
    sentences: Mapping[str, int]

    def __str__(self) -> str:
        parts = (f"{label} {self.right[label]} of {self.sentences[label]}" for label in self.right)
        return ", ".join(parts)


def score(folder: Path) -> Score:
    """Classify every held-out sentence with the stored weights."""
    scorer, names = scoring().Scorer(folder), labels()
    texts = held_out()
    right = {
        label: sum(names[scorer.scores(text).argmax()] == label for text in texts[label])
        for label in names
    }
    return Score(right, {label: len(texts[label]) for label in names})
