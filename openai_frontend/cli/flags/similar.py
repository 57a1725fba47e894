"""Finds the option that an unknown one was certainly meant to be."""

from collections.abc import Iterable

_SHORT_NAME = 8  # in shorter names, two changes make another word


def similar(name: str, known: Iterable[str]) -> str | None:
    """The only known option that a slip of the keyboard turns into `name`.

    That is one wrong, missing, additional or exchanged letter, or two in a long name. A name with
    `no-` means the opposite of one without, and is never similar to it.
    """
    most = 1 if len(name.lstrip("-")) < _SHORT_NAME else 2
    off = name.startswith("--no-")
    candidates = [
        each
        for each in known
        if each.startswith("--no-") == off and abs(len(each) - len(name)) <= most
    ]
    distances = sorted((edits(name, each), each) for each in candidates if each.startswith("--"))
    if not distances or distances[0][0] > most:
        return None
    closest = [each for distance, each in distances if distance == distances[0][0]]
    return closest[0] if len(closest) == 1 else None


def edits(left: str, right: str) -> int:
    """Changed, missing, additional and exchanged letters (optimal string alignment)."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, one in enumerate(left, 1):
        current = [row]
        for column, other in enumerate(right, 1):
            cost = min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (one != other))
            exchanged = left[row - 2 : row] == right[column - 2 : column][::-1]
            if before and column > 1 and exchanged:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]
