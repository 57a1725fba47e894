"""Turns an expression that is searched for, as JSON Schema's `pattern`, into expressions for whole
texts, without anchors and lookaheads.
"""

import enum
import functools
from collections.abc import Mapping

from openai_frontend.engines.vllm.grammars.code_points import (
    Ranges,
    complement,
    intersection,
    of_text,
)
from openai_frontend.engines.vllm.grammars.regex_complement import ANY_TEXT, unmatched
from openai_frontend.engines.vllm.grammars.regex_determinism import check_readings
from openai_frontend.engines.vllm.grammars.regex_syntax import parse
from openai_frontend.engines.vllm.grammars.regex_tree import (
    EMPTY,
    NOTHING,
    Anchor,
    Characters,
    Choice,
    Lookahead,
    Node,
    Repeat,
    Sequence,
    characters,
    choice,
    is_optional,
    not_empty,
    repeat,
    sequence,
)

# Whether the text must start, and end, where the expression does -> what matches then
_Anchored = Mapping[tuple[bool, bool], Node]

_LINE_BREAK = Characters(of_text("\n"))
_FREE, _AT_START, _AT_END, _WHOLE = (False, False), (True, False), (False, True), (True, True)


class Search(enum.Enum):
    """Positions at which the pattern may match."""

    ANYWHERE = "anywhere"  # as JSON Schema defines it
    ANCHORED = "anchored"  # the same, but the whole text if there is no anchor, as authors mean it
    WHOLE = "whole"  # only the whole text


def whole_texts(pattern: str, search: Search = Search.ANCHORED) -> tuple[Node, ...]:
    """Trees for the whole text, all of which must match. Raises ValueError if the pattern is
    invalid, not supported, matches nothing, or is too ambiguous.
    """
    ahead, rest = _lookaheads(parse(pattern))
    anchored = _anchored(rest)
    if search is Search.ANCHORED:
        search = Search.WHOLE if anchored.keys() == {_FREE} else Search.ANYWHERE
    if ahead and search is Search.ANYWHERE and not all(start for start, _ in anchored):
        raise ValueError("a lookahead is only supported at the start of the text")
    found = [_opened(anchored) if search is Search.ANYWHERE else choice(anchored.values())]
    for each in ahead:
        begun = _anchored(sequence([Anchor(True), each.part]))
        if not each.negated:
            found.append(_opened(begun))
        elif isinstance(each.part, Characters):
            found[0] = _excluding(found[0], each.part.ranges)
        else:
            found.append(unmatched(_opened(_before_line_end(begun))))
    if NOTHING in found:
        raise ValueError("no text matches it")
    for tree in found:
        check_readings(tree)
    return tuple(found)


def _lookaheads(tree: Node) -> tuple[list[Lookahead], Node]:
    """The lookaheads at the start, and the expression without them."""
    parts = list(tree.parts) if isinstance(tree, Sequence) else [tree]
    ahead, before = [], []
    while parts and isinstance(parts[0], Anchor | Lookahead) and parts[0] != Anchor(False):
        first = parts.pop(0)
        if isinstance(first, Lookahead):
            ahead.append(first)
        else:
            before.append(first)
    return ahead, sequence([*before, *parts])


def _opened(anchored: _Anchored) -> Node:
    """With any text on each side that has no anchor."""
    return choice(
        sequence([EMPTY if start else ANY_TEXT, node, EMPTY if end else ANY_TEXT])
        for (start, end), node in anchored.items()
    )


def _before_line_end(anchored: _Anchored) -> _Anchored:
    """Python's `$` also matches before a line break that ends the text."""
    return {
        (start, end): sequence([node, choice([EMPTY, _LINE_BREAK])]) if end else node
        for (start, end), node in anchored.items()
    }


def _excluding(node: Node, first: Ranges) -> Node:
    """The texts that do not begin with a character of the set."""
    match node:
        case Characters(ranges):
            return characters(intersection(ranges, complement(first)))
        case Sequence((head, *rest)):
            begun = sequence([_excluding(not_empty(head), first), *rest])
            return (
                choice([begun, _excluding(sequence(rest), first)]) if is_optional(head) else begun
            )
        case Choice(options):
            return choice(_excluding(option, first) for option in options)
        case Repeat(part, least, most):
            again = repeat(part, max(least - 1, 0), None if most is None else most - 1)
            begun = sequence([_excluding(part, first), again])
            return choice([EMPTY, begun]) if least == 0 else begun
        case _:
            return node


def _anchored(node: Node) -> _Anchored:
    match node:
        case Anchor(start):
            return {(start, not start): EMPTY}
        case Lookahead():
            raise ValueError("a lookahead is only supported at the start of the text")
        case Sequence(parts):
            return functools.reduce(_joined, map(_anchored, parts), {_FREE: EMPTY})
        case Choice(options):
            return _merged([pair for each in options for pair in _anchored(each).items()])
        case Repeat(part, least, most):
            return _repeated(_anchored(part), least, most)
        case _:
            return {_FREE: node}


def _joined(first: _Anchored, second: _Anchored) -> _Anchored:
    """Join the parts; those that an anchor excludes on its side must be empty."""
    found = []
    for (start, ends_before), one in first.items():
        for (starts_after, end), other in second.items():
            left = (starts_after and not is_optional(one)) or (
                ends_before and not is_optional(other)
            )
            if left:
                continue
            parts = [EMPTY if starts_after else one, EMPTY if ends_before else other]
            found.append(((start or starts_after, end or ends_before), sequence(parts)))
    return _merged(found)


def _repeated(part: _Anchored, least: int, most: int | None) -> _Anchored:
    if part.keys() <= {_FREE}:
        return {_FREE: repeat(part.get(_FREE, NOTHING), least, most)}
    if least > 1:
        raise ValueError("a repetition of an anchor is not supported")
    plain = part.get(_FREE, NOTHING)
    one_less = repeat(plain, 0, None if most is None else most - 1)
    two_less = repeat(plain, 0, None if most is None else max(most - 2, 0))
    start, end = part.get(_AT_START, NOTHING), part.get(_AT_END, NOTHING)
    both = [sequence([start, two_less, end])] if most is None or most > 1 else []
    return _merged([
        (_FREE, repeat(plain, least, most)),
        (_AT_START, sequence([start, one_less])),
        (_AT_END, sequence([one_less, end])),
        (_WHOLE, choice([part.get(_WHOLE, NOTHING), *both])),
    ])  # fmt: skip


def _merged(found: list[tuple[tuple[bool, bool], Node]]) -> _Anchored:
    keys = dict.fromkeys(key for key, node in found if node != NOTHING)
    return {key: choice(node for each, node in found if each == key) for key in keys}
