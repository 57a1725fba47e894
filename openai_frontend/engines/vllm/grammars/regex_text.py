"""Writes trees of regular expressions in the syntax of a grammar engine, with every class as ranges
of code points, so that no engine has to interpret one.
"""

from collections.abc import Callable

from openai_frontend.engines.vllm.grammars.code_points import (
    Ranges,
    complement,
    intersection,
    of_text,
)
from openai_frontend.engines.vllm.grammars.regex_tree import (
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    parts_of,
)

# Characters that a JSON string contains only as an escape, and the escapes with a letter
ESCAPED_IN_JSON = ((0, 0x1F), *of_text('"'), *of_text("\\"))
_VERBATIM = complement(ESCAPED_IN_JSON)
_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_XGRAMMAR, _RUST = r"\u{%x}", r"\x{%x}"  # a code point
_CONTROLS = ((0, 0x1F),)
_NOT_NULL = complement(((0, 0),))


def for_llguidance(node: Node) -> str:
    """The whole text, in Rust's syntax.

    Classes do not contain U+0000 beside other characters: within JSON, llguidance 1.7 adds quotes
    and backslashes to a class with all control characters.
    """
    return _written(node, lambda ranges: _class(intersection(ranges, _NOT_NULL) or ranges, _RUST))


def for_xgrammar(node: Node) -> str:
    """The whole text, in xgrammar's syntax."""
    return _written(node, lambda ranges: _class(ranges, _XGRAMMAR))


def within_json_for_xgrammar(node: Node) -> str:
    """The inside of a JSON string, in xgrammar's syntax."""
    return _written(node, _json_class)


def needs_escapes(node: Node) -> bool:
    """Whether a part of the text has only characters that JSON escapes."""
    return any(
        isinstance(part, Characters) and not intersection(part.ranges, _VERBATIM)
        for part in parts_of(node)
    )


def _written(node: Node, spell: Callable[[Ranges], str]) -> str:
    match node:
        case Characters(ranges):
            return spell(ranges)
        case Sequence(parts):
            return "".join(_grouped(part, spell, (Choice,)) for part in parts)
        case Choice(options):
            return "|".join(_written(option, spell) for option in options)
        case Repeat(part, least, most):
            return _grouped(part, spell, (Choice, Sequence, Repeat)) + _count(least, most)
        case _:
            raise AssertionError("an assertion is left in the expression")


def _grouped(node: Node, spell: Callable[[Ranges], str], kinds: tuple[type, ...]) -> str:
    text = _written(node, spell)
    return f"({text})" if isinstance(node, kinds) else text


def _count(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _class(ranges: Ranges, code: str) -> str:
    single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    if single:
        return _character(ranges[0][0], code)
    written = (
        _character(low, code) + (f"-{_character(high, code)}" if high > low else "")
        for low, high in ranges
    )
    return f"[{''.join(written)}]"


def _character(code_point: int, code: str) -> str:
    text = chr(code_point)
    return text if text.isascii() and text.isalnum() else code % code_point


def _json_class(ranges: Ranges) -> str:
    """A character, or the escape of one. Escapes with a number only stand for sets that have
    nothing else: models hardly write them.
    """
    verbatim = intersection(ranges, _VERBATIM)
    letters = [
        _character(ord(letter), _XGRAMMAR)
        for text, letter in _ESCAPES.items()
        if intersection(ranges, of_text(text))
    ]
    if not verbatim and not letters:
        letters = [
            f"u{code:04x}"
            for low, high in intersection(ranges, _CONTROLS)
            for code in range(low, high + 1)
        ]
    if not letters:
        return _class(verbatim, _XGRAMMAR)
    escapes = rf"\\({'|'.join(letters)})"
    return f"({_class(verbatim, _XGRAMMAR)}|{escapes})" if verbatim else f"({escapes})"
