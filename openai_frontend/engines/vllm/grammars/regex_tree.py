"""Trees of regular expressions. The functions that build them simplify: a part that nothing matches
disappears, with all that needs it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from openai_frontend.engines.vllm.grammars.code_points import Ranges, intersection, ranges_of


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of the set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """The parts one after the other; without parts, the empty text."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options; without options, nothing matches."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None  # None: any number


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or the end of the text."""

    start: bool


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The following text matches, or does not, without being consumed."""

    part: "Node"
    negated: bool


Node = Characters | Sequence | Choice | Repeat | Anchor | Lookahead

EMPTY = Sequence(())
NOTHING = Choice(())


def characters(ranges: Ranges) -> Node:
    return Characters(ranges) if ranges else NOTHING


def sequence(parts: Iterable[Node]) -> Node:
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat.extend(part.parts if isinstance(part, Sequence) else [part])
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(options: Iterable[Node]) -> Node:
    """Equal first characters are read once, and single characters become one set."""
    flat = dict.fromkeys(each for option in options for each in _options(option))
    empty = [EMPTY] if flat.pop(EMPTY, True) is None else []
    begun = _by_first_character(flat)
    sets = [each for each in begun if isinstance(each, Characters)]
    rest = [each for each in begun if not isinstance(each, Characters)]
    together = characters(ranges_of(pair for each in sets for pair in each.ranges))
    found: list[Node] = [*empty, *_options(together), *rest]
    return found[0] if len(found) == 1 else Choice(tuple(found))


def _by_first_character(options: Iterable[Node]) -> list[Node]:
    """`ab|ac` as `a(b|c)`."""
    tails: dict[Node, list[Node]] = {}
    for option in options:
        match option:
            case Sequence((Characters() as head, *tail)):
                tails.setdefault(head, []).append(sequence(tail))
            case _:
                tails.setdefault(option, []).append(EMPTY)
    return [
        sequence([head, choice(tail) if len(tail) > 1 else tail[0]]) for head, tail in tails.items()
    ]


def _options(node: Node) -> tuple[Node, ...]:
    return node.options if isinstance(node, Choice) else (node,)


def repeat(part: Node, least: int, most: int | None) -> Node:
    if is_optional(part):
        part, least = not_empty(part), 0
    if part == NOTHING or most == 0:
        return NOTHING if least else EMPTY
    if part == EMPTY or (least, most) == (1, 1):
        return part
    if least == 0 and most is not None:  # xgrammar 0.2.8 misreads `{0,n}` as an alternative
        return choice([EMPTY, part if most == 1 else Repeat(part, 1, most)])
    if isinstance(part, Repeat) and (part.least, part.most) == (1, None):
        return Repeat(part.part, least, None)
    return Repeat(part, least, most)


def not_empty(node: Node) -> Node:
    """The node without the empty text, as far as it is an option of its own."""
    match node:
        case Choice(options):
            return choice(not_empty(each) for each in options if each != EMPTY)
        case Repeat(part, 0, most):
            return repeat(part, 1, most)
        case _:
            return node


def is_optional(node: Node) -> bool:
    """Whether the empty text matches."""
    match node:
        case Sequence(parts):
            return all(map(is_optional, parts))
        case Choice(options):
            return any(map(is_optional, options))
        case Repeat(part, least, _):
            return least == 0 or is_optional(part)
        case Anchor() | Lookahead():
            return True
        case _:
            return False


def parts_of(node: Node) -> Iterator[Node]:
    """The node and all nodes within it."""
    yield node
    match node:
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from parts_of(part)
        case Repeat(part, _, _) | Lookahead(part, _):
            yield from parts_of(part)


def within(node: Node, allowed: Ranges) -> Node:
    """The texts that consist of allowed characters."""
    match node:
        case Characters(ranges):
            return characters(intersection(ranges, allowed))
        case Sequence(parts):
            return sequence(within(part, allowed) for part in parts)
        case Choice(options):
            return choice(within(option, allowed) for option in options)
        case Repeat(part, least, most):
            return repeat(within(part, allowed), least, most)
        case _:
            return node
