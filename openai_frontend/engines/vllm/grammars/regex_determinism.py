"""Whether the next character always decides how an expression continues, and the cost if not.

xgrammar 0.2.8 misreads some expressions in which it does not: for `a|a{1,2}` it accepts `aaa`.
llguidance 1.7 follows all readings of a text, and fails within an answer if they become too many.
"""

from collections.abc import Iterator

from openai_frontend.engines.vllm.grammars.code_points import Ranges, intersection, ranges_of
from openai_frontend.engines.vllm.grammars.regex_tree import (
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    is_optional,
)

# Upper bound of the readings of one text: llguidance fails above in any case. With a vocabulary of
# 150,000 tokens it may fail from 100 on, depending on the expression, which a trial answer finds
# (sandbox_worker.py).
MAX_READINGS = 3000


def is_deterministic(node: Node) -> bool:
    """Whether no text can be read in two ways, at any of its characters."""
    return _decides(node, ())


def _decides(node: Node, follow: Ranges) -> bool:
    """`follow` are the characters that may come after the node."""
    match node:
        case Sequence(parts):
            return all(_decides(part, after) for part, after in _followed(parts, follow))
        case Choice(options):
            if sum(map(is_optional, options)) > 1:
                return False
            firsts = [_first(option, follow) for option in options]
            return _are_disjoint(firsts) and all(_decides(each, follow) for each in options)
        case Repeat(part, least, most):
            again = _first(part, ())
            if least != most and intersection(again, follow):
                return False
            return _decides(part, ranges_of([*again, *follow]))
        case _:
            return True


def _first(node: Node, follow: Ranges) -> Ranges:
    """The characters that a text may begin with."""
    match node:
        case Characters(ranges):
            return ranges
        case Sequence(parts):
            return _first_of(parts, follow)
        case Choice(options):
            return ranges_of(pair for each in options for pair in _first(each, follow))
        case Repeat(part, least, _):
            after = follow if least == 0 or is_optional(part) else ()
            return ranges_of([*_first(part, after), *after])
        case _:
            return follow


def _first_of(parts: tuple[Node, ...], follow: Ranges) -> Ranges:
    """The characters that a sequence of these parts may begin with."""
    needed = next((i for i, part in enumerate(parts, 1) if not is_optional(part)), len(parts))
    for part in reversed(parts[:needed]):
        follow = _first(part, follow)
    return follow


def _followed(parts: tuple[Node, ...], follow: Ranges) -> Iterator[tuple[Node, Ranges]]:
    """Each part of a sequence, with the characters that may come after it."""
    found = []
    for part in reversed(parts):
        found.append((part, follow))
        follow = _first(part, follow)
    return reversed(found)


def check_readings(node: Node) -> None:
    """Raises ValueError for an expression of which llguidance may follow too many readings."""
    most, _ = _readings(node, (), several=False)
    if most > MAX_READINGS:
        raise ValueError(
            f"its repetitions are ambiguous: one text has up to {most} readings, and at most"
            f" {MAX_READINGS} are supported. Use lower counts, or separators that what is repeated"
            " cannot contain"
        )


def _readings(node: Node, follow: Ranges, *, several: bool) -> tuple[int, bool]:
    """At most how many places of the node a text can have reached, counting each number of
    repetitions apart, and whether it can have left the node at several places of the text.
    `several`: it can have entered the node at several places.
    """
    match node:
        case Sequence(parts):
            most = 0
            for part, after in _followed(parts, follow):
                count, leaves = _readings(part, after, several=several)
                most = most + count if several or leaves else max(most, count)
                several = leaves
            return most, several
        case Choice(options):
            apart = not several and _are_disjoint([_first(each, follow) for each in options])
            found = [_readings(each, follow, several=not apart) for each in options]
            counts = [count for count, _ in found]
            return (max if apart else sum)(counts), any(leaves for _, leaves in found)
        case Repeat(part, least, most_times):
            again = _first(part, ())
            several = several or not _decides(part, again)
            count, leaves = _readings(part, ranges_of([*again, *follow]), several=several)
            times = max(most_times or least, 1) if several else 1
            may_leave = least != most_times and bool(intersection(again, follow))
            return count * times, leaves or may_leave
        case _:
            return 1, several


def _are_disjoint(sets: list[Ranges]) -> bool:
    together: Ranges = ()
    for each in sets:
        if intersection(together, each):
            return False
        together = ranges_of([*together, *each])
    return True
