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
_WHY = "matches characters that JSON escapes; write them as strings"


def within_json(grammar: str) -> str:
    """The translated grammar. Raises Unconstrainable."""
    structure = _TOKEN.sub("", grammar)
    if "%" in structure.replace("%ignore", ""):
        raise Unconstrainable("'%ignore' is the only Lark directive that custom tools support")
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
    expression = found["regex"]
    if _RESPELLED.search(expression) or any(
        _includes_escaped(*ends) for ends in _IN_CLASS.findall(expression)
    ):
        raise Unconstrainable(f"the expression /{expression[:64]}/ {_WHY}")
    return found[0]


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
