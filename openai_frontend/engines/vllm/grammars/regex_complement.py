"""The texts that an expression does not match, as an expression: a deterministic automaton, with
its states eliminated one after the other.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import pairwise

from openai_frontend.engines.vllm.grammars.code_points import (
    ALL,
    Ranges,
    ranges_of,
    without_surrogates,
)
from openai_frontend.engines.vllm.grammars.regex_tree import (
    EMPTY,
    NOTHING,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    characters,
    choice,
    is_optional,
    parts_of,
    repeat,
    sequence,
)

ANY_TEXT = repeat(Characters(ALL), 0, None)
# The lookaheads of email addresses need 3 states.
MAX_STATES = 24
MAX_STEPS = 20_000  # of one state: sets of characters times ranges
MAX_PARTS = 600  # of the expression on one edge
_TOO_COMPLEX = "a negative lookahead is too complex"

_State = frozenset[Node]  # what may follow: the text matches one of them
_START, _END = "start", "end"
_Edges = dict[tuple[object, object], Node]


def unmatched(node: Node) -> Node:
    """The texts that do not match. Raises ValueError if the automaton or the expression is too
    large.
    """
    edges = _automaton(node)
    states = {state for edge in edges for state in edge} - {_START, _END}
    while states:
        state = min(states, key=lambda state: _degree(edges, state))
        states.remove(state)
        _eliminate(edges, state)
    return edges.get((_START, _END), NOTHING)


def _automaton(node: Node) -> _Edges:
    first: _State = frozenset([node])
    edges: _Edges = {(_START, first): EMPTY}
    known, waiting = {first}, [first]
    while waiting:
        state = waiting.pop()
        if not any(map(is_optional, state)):
            edges[state, _END] = EMPTY
        for target, ranges in _moves(state).items():
            edges[state, target] = characters(ranges)
            if target not in known:
                known.add(target)
                waiting.append(target)
        if len(known) > MAX_STATES:
            raise ValueError(_TOO_COMPLEX)
    return edges


def _moves(state: _State) -> Mapping[_State, Ranges]:
    """The characters that lead to each next state; none to one that matches whatever follows."""
    steps = [step for node in state for step in _steps(node)]
    ends = {end for ranges, _ in steps for low, high in ranges for end in (low, high + 1)}
    starts = sorted({0, *ends, ALL[-1][1] + 1})
    if len(steps) * len(starts) > MAX_STEPS:
        raise ValueError(_TOO_COMPLEX)
    targets: list[set[Node]] = [set() for _ in starts[1:]]
    for ranges, rest in steps:
        for low, high in ranges:
            for i in range(bisect_left(starts, low), bisect_left(starts, high + 1)):
                targets[i].add(rest)
    found: dict[_State, list[tuple[int, int]]] = {}
    for target, (low, after) in zip(targets, pairwise(starts), strict=True):
        if ANY_TEXT not in target:
            found.setdefault(frozenset(target), []).append((low, after - 1))
    sets = {target: without_surrogates(ranges_of(pairs)) for target, pairs in found.items()}
    return {target: ranges for target, ranges in sets.items() if ranges}


def _steps(node: Node) -> Iterator[tuple[Ranges, Node]]:
    """Sets of first characters, each with what may follow."""
    match node:
        case Characters(ranges):
            yield ranges, EMPTY
        case Sequence((head, *rest)):
            for ranges, after in _steps(head):
                yield ranges, sequence([after, *rest])
            if is_optional(head):
                yield from _steps(sequence(rest))
        case Choice(options):
            for option in options:
                yield from _steps(option)
        case Repeat(part, least, most):
            again = repeat(part, max(least - 1, 0), None if most is None else most - 1)
            for ranges, after in _steps(part):
                yield ranges, sequence([after, again])


def _degree(edges: _Edges, state: object) -> int:
    sources = sum(target == state for _, target in edges)
    targets = sum(source == state for source, _ in edges)
    return sources * targets


def _eliminate(edges: _Edges, state: object) -> None:
    """Replace the ways through the state by edges around it."""
    loop = repeat(edges.pop((state, state), NOTHING), 0, None)
    before = {source: edges.pop((source, to)) for source, to in list(edges) if to == state}
    after = {to: edges.pop((source, to)) for source, to in list(edges) if source == state}
    for source, one in before.items():
        for target, other in after.items():
            around = edges.get((source, target), NOTHING)
            whole = choice([around, sequence([one, loop, other])])
            if sum(1 for _ in parts_of(whole)) > MAX_PARTS:
                raise ValueError(_TOO_COMPLEX)
            edges[source, target] = whole
