"""Pairs of sentences about the same subject, and the sentences that score a model."""

import random
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scripts.demo_model import topics
from scripts.demo_model.phrasing import expand

_SUBJECTS = Path(__file__).with_name("subjects.toml")
_TOPICS = "project"
# A question and its answer are about the same thing too.
_ANSWER_SHARE = 0.2


@cache
def _subjects() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(_SUBJECTS.read_text("utf-8"))


def names() -> list[str]:
    """Every subject: those of this folder, then this project's topics."""
    return [*_subjects(), *topics.topic_names(_TOPICS)]


def sentence(rng: random.Random, name: str) -> str:
    """A sentence for training about this subject."""
    if name in _subjects():
        return expand(rng, rng.choice(_subjects()[name]["sentences"]))
    exchange = topics.topic(_TOPICS, name, rng, "train")
    if rng.random() < _ANSWER_SHARE:
        return rng.choice(exchange.answers)
    return str(exchange.messages[-1]["content"])


def held_out() -> dict[str, list[str]]:
    """Subject -> sentences that training never sees."""
    found = {name: entry["held_out"] for name, entry in _subjects().items()}
    return found | {name: topics.held_out(_TOPICS, name) for name in topics.topic_names(_TOPICS)}


def batches(seed: int, count: int, size: int) -> Iterator[list[tuple[str, str]]]:
    """`count` batches of `size` pairs, each pair about another subject than the rest."""
    rng = random.Random(seed)
    everything = names()
    forbidden = {text for texts in held_out().values() for text in texts}
    for _ in range(count):
        chosen = rng.sample(everything, size)
        yield [_pair(rng, name, forbidden) for name in chosen]


def _pair(rng: random.Random, name: str, forbidden: set[str]) -> tuple[str, str]:
    while True:
        first, second = sentence(rng, name), sentence(rng, name)
        if first != second and not {first, second} & forbidden:
            return first, second


def texts(seed: int, count: int) -> Iterator[str]:
    """Training sentences of random subjects, for the tokenizer to learn from."""
    rng = random.Random(seed)
    for _ in range(count):
        yield sentence(rng, rng.choice(names()))
