"""Schemas with every keyword of JSON Schema's drafts 4 to 2020-12, alone and in pairs."""

import json
import random
from collections.abc import Iterator
from typing import Any

from scripts.constraint_corpus.client_schemas import DATA, as_property

Schema = dict[str, Any]

PAIRS = 250

_ANY = "any"  # the keywords of every type


def keyword_schemas(seed: int) -> Iterator[tuple[str, Schema]]:
    """Names and schemas: each value of each keyword with and without a type, then random pairs."""
    # type of the value -> keyword -> values of the keyword
    types = json.loads((DATA / "keywords.json").read_text(encoding="utf-8"))
    everywhere = types.pop(_ANY)
    for kind, keywords in types.items():
        for keyword, values in {**keywords, **everywhere}.items():
            for i, value in enumerate(values):
                yield f"{kind} {keyword} {i}", as_property({"type": kind, keyword: value})
    for kind, keywords in types.items():
        for keyword, values in keywords.items():
            yield f"untyped {kind} {keyword}", as_property({keyword: values[0]})
    chooser = random.Random(seed)
    for i in range(PAIRS):
        kind = chooser.choice(list(types))
        chosen = {**types[kind], **everywhere} if chooser.random() < 0.3 else types[kind]
        names = chooser.sample(list(chosen), chooser.choice((2, 2, 3)))
        pair = {name: chooser.choice(chosen[name]) for name in names}
        yield f"{kind} {' '.join(names)} {i}", as_property({"type": kind, **pair})
