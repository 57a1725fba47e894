"""Whether the next character always decides how an expression goes on.

xgrammar 0.2.8 misreads some expressions in which it does not: for `a|a{1,2}` it accepts `aaa`.
"""

from openai_frontend.engines.vllm.grammars.code_points import Ranges, intersection, ranges_of
from openai_frontend.engines.vllm.grammars.regex_tree import (
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    is_optional,
    sequence,
)


def is_deterministic(node: Node) -> bool:
    """Whether no text can be read in two ways, at any of its characters."""
    return _decides(node, ())


def _decides(node: Node, follow: Ranges) -> bool:
    """`follow` are the characters that may come after the node."""
    match node:
        case Sequence((head, *rest)):
            after = _first(sequence(rest), follow)
            return _decides(head, after) and _decides(sequence(rest), follow)
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
        case Sequence((head, *rest)):
            return _first(head, _first(sequence(rest), follow) if is_optional(head) else ())
        case Choice(options):
            return ranges_of(pair for each in options for pair in _first(each, follow))
        case Repeat(part, least, _):
            after = follow if least == 0 or is_optional(part) else ()
            return ranges_of([*_first(part, after), *after])
        case _:
            return follow


def _are_disjoint(sets: list[Ranges]) -> bool:
    together: Ranges = ()
    for each in sets:
        if intersection(together, each):
            return False
        together = ranges_of([*together, *each])
    return True
