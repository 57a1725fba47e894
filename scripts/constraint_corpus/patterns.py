"""Regular expressions of the corpus: what clients write, and random ones of every construct."""

import json
import random
from collections.abc import Iterator

from scripts.constraint_corpus.client_schemas import DATA

RANDOM = 2000

_LITERALS = ("a", "b", "z", "Q", "7", "-", "_", " ", "@", ":", "/", "é", "語", "x1", "foo")
_ESCAPES = (r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\.", r"\/", r"\-", r"\\", r"\"", r"\n",
            r"\t", r"\r", r"\x41", r"\u0042", r"\x2d", r"\(", r"\[", r"\{", r"\|",
            r"\$")  # fmt: skip
_RARE = (r"\b", r"\B", r"\p{L}", r"\P{N}", r"\p{Script=Greek}", r"\0", r"\cJ", r"\v", r"\f",
         r"\x1b", r"(?=a)", r"(?!b)", r"(?<=a)", r"(?<!b)", r"\1", r"^", r"$", "\"", "\n",
         r"\u{61}")  # fmt: skip
_IN_CLASS = ("a-z", "A-F", "0-9", "_", "-", r"\d", r"\w", r"\s", r"\.", ".", "+", r"\-", r"\]",
             r"\\", "\"", r"\n", r"\x41", r"\u00e9", "à-ö", r"\/", "^", "$", "(", "|", r"\x20-\x7e",
             r"\p{L}", r"\b", r"\W", r"\S", "{", "&", "é")  # fmt: skip
_COUNTS = ("?", "*", "+", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}", "??", "*?", "+?", "{1,2}?")


def patterns(seed: int) -> Iterator[str]:
    """Those that clients write, for validators such as zod's, then random ones."""
    chooser = random.Random(seed)
    written = json.loads((DATA / "patterns.json").read_text(encoding="utf-8"))
    seen = set(written)
    yield from written
    while len(seen) < len(written) + RANDOM:
        pattern = _random(chooser)
        if pattern not in seen and len(pattern) <= 120:
            seen.add(pattern)
            yield pattern


def _random(chooser: random.Random) -> str:
    body = _alternatives(chooser, depth=chooser.randrange(3))
    begin, end = ("^", "$") if chooser.random() < 0.8 else (chooser.choice(("", "^")), "")
    if begin and end and "|" in body:
        body = f"(?:{body})" if chooser.random() < 0.7 else body
    return f"{begin}{body}{end}"


def _alternatives(chooser: random.Random, depth: int) -> str:
    count = 1 if chooser.random() < 0.75 else chooser.randint(2, 3)
    return "|".join(_sequence(chooser, depth) for _ in range(count))


def _sequence(chooser: random.Random, depth: int) -> str:
    pieces = []
    for _ in range(chooser.randint(1, 4)):
        atom, repeatable = _atom(chooser, depth)
        count = chooser.choice(_COUNTS) if repeatable and chooser.random() < 0.45 else ""
        pieces.append(atom + count)
    return "".join(pieces)


def _atom(chooser: random.Random, depth: int) -> tuple[str, bool]:
    draw = chooser.random()
    if depth and draw < 0.3:
        opening = chooser.choice(("(", "(?:", "(", "(?:", "(?<name>"))
        name = opening.replace("name", f"n{chooser.randrange(1000)}")
        return f"{name}{_alternatives(chooser, depth - 1)})", True
    if draw < 0.55:
        return _class(chooser), True
    if draw < 0.72:
        return chooser.choice(_ESCAPES), True
    if draw < 0.76:
        return chooser.choice(_RARE), False
    if draw < 0.8:
        return ".", True
    return chooser.choice(_LITERALS), True


def _class(chooser: random.Random) -> str:
    members = chooser.sample(_IN_CLASS, chooser.randint(1, 4))
    members.sort(key=lambda each: each == "-")  # a hyphen between two classes is not portable
    return f"[{'^' if chooser.random() < 0.15 else ''}{''.join(members)}]"
