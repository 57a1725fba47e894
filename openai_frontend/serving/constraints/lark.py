"""Translates a Lark grammar of a text into one of the same text inside a JSON string.

JSON escapes text character by character, so only the grammar's terminals must change.
"""

import re

import orjson

from openai_frontend.serving.constraints.formats import Unconstrainable

# An unclosed string or expression is a token too: searching its end again from each quote within it
# would take quadratic time.
_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\\n])*+(?P<closed>"?))(?P<fold>i?)'
    r"|(?P<comment>(?://|#)[^\n]*)"
    r"|/(?P<regex>(?:\\.|[^/\\\n])++)(?P<ended>/?)(?P<flags>[imslux]*)"
)
# In a regular expression these match quotes, backslashes or control characters, which JSON escapes.
_RESPELLED = re.compile(
    r'["\x00-\x1f]|\\[^\w\s]?(?<=\\\\)|\\[sSWDnrtfvabBxuUpP0]|\[\^'
    r"|\[:(?!(?:alnum|alpha|digit|lower|upper|word|xdigit):\])\^?\w+:\]"
)
# The ends of a range of characters, in a class or between strings
_IN_CLASS = re.compile(r"([^\\])-\\?([^\]])")
_RANGE = re.compile(r'"([^"\\])"\s*\.\.\s*"([^"\\])"')
# A part of an expression: an escape, a class without others in it, or one character
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\\[])*+\]|.", re.DOTALL)
# Any character but a line break: as it is, or as JSON escapes it
_ANY_IN_LINE = r'(?:[^"\\\x00-\x1f]|\\["\\bfrt])'
_ANY = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt])'
_FLAGS_WITHIN = re.compile(r"\(\?[a-zA-Z-]*[is]")  # which would change these
_ESCAPE = re.compile(r'(\\(?:u[0-9a-f]{4}|["\\bfnrt]))')
# Matches what its expression does not, or a token of the vocabulary
_NOT_TEXT = re.compile(r"~(?!\s*\d)|<")
_IMPORT = re.compile(
    r"^[ \t]*%import[ \t]+common[ \t]*"
    r"(?:\.[ \t]*(?P<name>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?|\((?P<names>[\w\s,]*)\))"
    r"[ \t\r]*(?:(?://|#)[^\n]*)?$",
    re.MULTILINE,
)
_DIGIT, _LETTER = '"0".."9"', '("a".."z" | "A".."Z")'
# Terminals of Lark's module `common`, which grammars import
_COMMON = {
    "CNAME": f'("_" | {_LETTER}) ("_" | {_LETTER} | {_DIGIT})*',
    "CR": r'"\r"',
    "DIGIT": _DIGIT,
    "HEXDIGIT": f'("a".."f" | "A".."F" | {_DIGIT})',
    "INT": f"({_DIGIT})+",
    "LCASE_LETTER": '"a".."z"',
    "LETTER": _LETTER,
    "LF": r'"\n"',
    "NEWLINE": r'("\r"? "\n")+',
    "SIGNED_INT": f'("+" | "-")? ({_DIGIT})+',
    "UCASE_LETTER": '"A".."Z"',
    "WORD": f"({_LETTER})+",
    "WS": r'(" " | "\t" | "\f" | "\r" | "\n")+',
    "WS_INLINE": r'(" " | "\t")+',
}
_WHY = "matches characters that JSON escapes; write them as strings"


def within_json(grammar: str) -> str:
    """The translated grammar. Raises Unconstrainable."""
    grammar = _IMPORT.sub(_imported, grammar)
    structure = _TOKEN.sub("", grammar)
    if "%" in structure.replace("%ignore", ""):
        supported = "'%ignore' and '%import common.NAME' are"
        raise Unconstrainable(f"{supported} the only Lark directives that custom tools support")
    if "::=" in structure:
        raise Unconstrainable("it is EBNF ('::='); a Lark rule is written with ':'")
    if _NOT_TEXT.search(structure):
        raise Unconstrainable("custom tools support no negations ('~') and no tokens ('<...>')")
    respelled = _TOKEN.sub(_respelled, grammar)
    for low, high in _RANGE.findall(respelled):
        if _includes_escaped(low, high):
            raise Unconstrainable(f'the range "{low}".."{high}" {_WHY}')
    return respelled


def _respelled(found: re.Match[str]) -> str:
    if found["comment"]:
        return ""
    if "" in (found["closed"], found["ended"]):
        raise Unconstrainable(f"unterminated string or expression: {found[0][:64]}")
    if found["string"]:
        return _string(found["string"], found["fold"])
    expression, flags = found["regex"], found["flags"]
    parts = _PART.findall(expression)
    spelled = {".": _ANY if "s" in flags else _ANY_IN_LINE, r"[^\n]": _ANY_IN_LINE}
    if "i" in flags:  # an escape has one spelling
        spelled = {part: text.replace("(?:", "(?-i:") for part, text in spelled.items()}
    rest = "".join([part for part in parts if part not in spelled])
    ranges = [ends for part in parts if part[0] == "[" for ends in _IN_CLASS.findall(part)]
    if _RESPELLED.search(rest) or any(_includes_escaped(*ends) for ends in ranges):
        raise Unconstrainable(f"the expression /{expression[:64]}/ {_WHY}")
    if "[" in parts or (len(rest) < len(expression) and _FLAGS_WITHIN.search(rest)):
        why = "has a class within a class, or flags in parentheses beside '.'"
        raise Unconstrainable(f"the expression /{expression[:64]}/ {why}")
    return f"/{''.join(spelled.get(part, part) for part in parts)}/{flags}"


def _imported(found: re.Match[str]) -> str:
    """The definitions of imported terminals."""
    if found["name"]:
        wanted = [(found["alias"] or found["name"], found["name"])]
    else:
        wanted = [(name, name) for name in re.findall(r"\w+", found["names"])]
    unknown = [name for _, name in wanted if name not in _COMMON]
    if unknown:
        known = ", ".join(_COMMON)
        raise Unconstrainable(f"'common.{unknown[0][:64]}' cannot be imported; supported: {known}")
    return "\n".join(f"{alias}: {_COMMON[name]}" for alias, name in wanted)


def _includes_escaped(low: str, high: str) -> bool:
    return any(low <= each <= high for each in '"\\')


def _string(literal: str, fold: str) -> str:
    """The string, in which `fold` concerns the letters, not the escapes of JSON."""
    try:
        text = orjson.loads(literal)
    except orjson.JSONDecodeError:
        raise Unconstrainable(
            f"the string {literal[:64]} has an escape sequence that JSON does not have"
        ) from None
    inside = orjson.dumps(text).decode()[1:-1]
    if not fold or "\\" not in inside:
        return orjson.dumps(inside).decode() + fold
    pieces = [piece for piece in _ESCAPE.split(inside) if piece]
    folded = [orjson.dumps(each).decode() + fold * (each[0] != "\\") for each in pieces]
    return f"({' '.join(folded)})"
