"""Reads choices from the start of an input; the rest is the text for the parser."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)


class Draw:
    """An input that is too short selects the first of every set of options."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        taken = self._data[self._at : self._at + 1]
        self._at += 1
        return taken[0] if taken else 0

    def choice(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def rest(self) -> bytes:
        return self._data[self._at :]


def pieces(text: Text, seed: int) -> list[Text]:
    """Return the text, cut at up to eight positions that depend on the seed."""
    return [text[start:end] for start, end in pairwise(_cuts(len(text), seed)) if start < end]


def _cuts(length: int, seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [0, *sorted(chosen.randrange(length + 1) for _ in range(1 + seed % 8)), length]
