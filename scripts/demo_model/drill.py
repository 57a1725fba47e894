"""Rows of random tokens said twice: the purest exercise in copying."""

import random

# Token ids, and which of them the model learns to write.
Encoded = tuple[list[int], list[bool]]
# Below are the special tokens and ChatML's marks.
_FIRST_TOKEN = 3


def drill(rng: random.Random, length: int, vocabulary_size: int) -> Encoded:
    """One row: a few spans, then the same spans in another order."""
    ids: list[int] = []
    answer: list[bool] = []
    while len(ids) < length:
        spans = [
            rng.choices(range(_FIRST_TOKEN, vocabulary_size), k=rng.randint(2, 20))
            for _ in range(rng.randint(1, 4))
        ]
        for span in spans:
            ids += span
            answer += [False] * len(span)
        for span in rng.sample(spans, k=len(spans)):
            ids += span
            # Which span comes next, and so its first token, cannot be known.
            answer += [False] + [True] * (len(span) - 1)
    return ids[:length], answer[:length]
