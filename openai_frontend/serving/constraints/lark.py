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
# In a regular expression these match quotes, backslashes or line breaks, which JSON escapes.
_RESPELLED = re.compile(r'["\x00-\x1f]|\\[^\w\s]?(?<=\\\\)|\\[sSWDnrtfvbBxuUpP0]|\[\^|(?<!\\)\.')
# The ends of a range of characters, in an expression or between strings
_IN_CLASS = re.compile(r"([^\\])-\\?([^\]])")
_RANGE = re.compile(r'"([^"\\])"\s*\.\.\s*"([^"\\])"')
# A part of an expression: an escape, a class or one character
_PART = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|.", re.DOTALL)
# Any character but a line break: as it is, or as JSON escapes it
_ANY_IN_LINE = r'(?:[^"\\\x00-\x1f]|\\["\\bfrt])'
_ANY = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt])'
_IMPORT = re.compile(
    r"^[ \t]*%import[ \t]+common[ \t]*"
    r"(?:\.[ \t]*(?P<name>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?|\((?P<names>[\w\s,]*)\))[ \t]*$",
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
        return _string(found["string"]) + found["fold"]
    expression, flags = found["regex"], found["flags"]
    parts = _PART.findall(expression)
    rest = "".join([part for part in parts if part not in (".", r"[^\n]")])
    if _RESPELLED.search(rest) or any(_includes_escaped(*ends) for ends in _IN_CLASS.findall(rest)):
        raise Unconstrainable(f"the expression /{expression[:64]}/ {_WHY}")
    spelled = {".": _ANY if "s" in flags else _ANY_IN_LINE, r"[^\n]": _ANY_IN_LINE}
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


def _string(literal: str) -> str:
    try:
        text = orjson.loads(literal)
    except orjson.JSONDecodeError:
        raise Unconstrainable(
            f"the string {literal[:64]} has an escape sequence that JSON does not have"
        ) from None
    inside = orjson.dumps(text).decode()[1:-1]
    return orjson.dumps(inside).decode()
