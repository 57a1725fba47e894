"""Finds the first of several literal markers in text that may end inside one."""

import re
from functools import lru_cache


class Markers:
    """Some literals. The pattern behind them is an alternation of plain texts, which has nothing
    to backtrack into.
    """

    def __init__(self, *literals: str) -> None:
        longest_first = sorted(set(literals), key=len, reverse=True)
        self.literals = tuple(longest_first)
        self.longest = len(longest_first[0]) if literals else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = frozenset(m[:i] for m in longest_first for i in range(1, len(m)))
        self._first_characters = frozenset(m[0] for m in longest_first)
        first = "|".join(map(re.escape, sorted(self._first_characters)))
        self._possible = re.compile(first or "(?!)")

    def find(self, text: str, start: int, ended: bool, limit: int | None = None) -> tuple[int, str]:
        """Where the first marker is, and which; without one "" and where the text stops that
        can belong to none. `limit` is how far from `start` to look.
        """
        if limit is None and not self._possible.search(text, start):
            return len(text), ""  # nearly always, so it comes first: 0.2 us against 0.9
        stop = len(text) if limit is None else min(len(text), start + limit)
        found = self._pattern.search(text, start, stop)
        if ended or stop < len(text):
            return (found.start(), found.group()) if found else (stop, "")
        unsure = self._beginning_at_end(text, start)
        if found and found.start() < unsure:
            return found.start(), found.group()
        return unsure, ""

    def _beginning_at_end(self, text: str, start: int) -> int:
        for at in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[at] in self._first_characters and text[at:] in self._beginnings:
                return at
        return len(text)


@lru_cache(maxsize=256)
def markers(*literals: str) -> Markers:
    """The same, made once for the literals of each row."""
    return Markers(*literals)
