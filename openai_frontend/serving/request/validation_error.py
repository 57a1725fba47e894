"""pydantic's validation errors in OpenAI's words, from a table, with the path of the field.

https://platform.openai.com/docs/guides/error-codes has few details. Clients match on `code` and
`param`; people read `message`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openai_frontend.errors import InvalidRequest

Problem = Mapping[str, Any]  # pydantic's ErrorDetails
Wording = tuple[str, str]  # message, code

_MAX_ECHO = 64  # characters of a value that a message repeats

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a decimal",
    "float_parsing": "a decimal",
    "bool_type": "a boolean",
    "bool_parsing": "a boolean",
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}


def invalid_request(problems: Sequence[Problem]) -> InvalidRequest:
    """The error for the first problem."""
    same_place = _most_relevant(problems)
    path = _place(same_place[0])
    message, code = _wording(same_place, path)
    return InvalidRequest(message, param=path or None, code=code)


def _most_relevant(problems: Sequence[Problem]) -> Sequence[Problem]:
    """The first problem; of a union's, those of the member that the value fits best.

    Each member of a union reports its own problem. The caller meant the member that got furthest
    into the value; if all stop at the same path, all are returned.
    """
    first = problems[0]
    prefix = _before_tag(first["loc"])
    if prefix is None:
        return [first]
    union = [problem for problem in problems if _before_tag(problem["loc"]) == prefix]
    furthest = max(_depth(problem) for problem in union)
    meant = [problem for problem in union if _depth(problem) == furthest]
    about_value = [problem for problem in meant if problem["type"] not in _EXPECTED]
    return about_value[:1] or meant


def _before_tag(loc: Sequence[str | int]) -> Sequence[str | int] | None:
    """The path to the union; None without a union."""
    return next((loc[:at] for at, step in enumerate(loc) if _is_tag(step)), None)


def _is_tag(step: str | int) -> bool:
    return isinstance(step, str) and step.startswith("<")


def _depth(problem: Problem) -> tuple[int, int]:
    steps = [step for step in problem["loc"] if not _is_tag(step)]
    return len(steps), steps[-1] if steps and isinstance(steps[-1], int) else -1


def _place(problem: Problem) -> str:
    """The path of the problem. Objects of a union are distinguished by their `type`."""
    path = _path(problem["loc"])
    about_type = problem["type"] in _TAG_PROBLEMS and isinstance(problem["input"], dict)
    return f"{path}.type" if about_type and not _forms(problem) else path


def _forms(problem: Problem) -> Sequence[str]:
    """The JSON types that a union distinguishes; empty if it distinguishes objects."""
    tags = re.findall("<([^>]*)>", problem.get("ctx", {}).get("expected_tags", ""))
    return tags if all(tag.startswith(("a ", "an ")) for tag in tags) else ()


def _path(loc: Sequence[str | int]) -> str:
    """`("messages", 0, "role")` as `messages[0].role`."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_tag(step) and step != "[key]":
            path += f".{step}" if path else step
    return _short(path)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_ECHO else text[:_MAX_ECHO] + "..."


def _wording(same_place: Sequence[Problem], path: str) -> Wording:
    problem = same_place[0]
    if problem["type"] in _EXPECTED:
        expected = list(dict.fromkeys(map(_expected, same_place)))
        return _wrong_type(expected, problem["input"], path)
    return _WORDINGS.get(problem["type"], _other)(problem, path)


def _expected(problem: Problem) -> str:
    """A union's tag is more specific than pydantic's message, which is the same for all arrays."""
    last = problem["loc"][-1] if problem["loc"] else ""
    return str(last)[1:-1] if _is_tag(last) else _EXPECTED[problem["type"]]


def _wrong_type(expected: Sequence[str], value: Any, path: str) -> Wording:
    article = "" if len(expected) == 1 else "one of "
    difference = f"expected {article}{_listed(expected)}, but got {_kind(value)} instead."
    subject = f"Invalid type for '{path}'" if path else "Invalid type for the request body"
    return f"{subject}: {difference}", "invalid_type"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _kind(value: Any) -> str:
    """A JSON value's type in OpenAI's words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string"}
    return names.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


def _malformed(problem: Problem, path: str) -> Wording:
    message = f"We could not parse the JSON body of your request: {problem['ctx']['error']}."
    return message, "json_invalid"


def _missing(problem: Problem, path: str) -> Wording:
    return f"Missing required parameter: '{path}'.", "missing_required_parameter"


def _bound(side: str, sign: str, key: str) -> Callable[[Problem, str], Wording]:
    def wording(problem: Problem, path: str) -> Wording:
        limit, got = problem["ctx"][key], _short(str(problem["input"]))
        kind = "decimal" if isinstance(limit, float) else "integer"
        expected = (
            f"Expected a value {sign} {limit:g}"
            if kind == "decimal"
            else (f"Expected a value {sign} {limit}")
        )
        message = (
            f"Invalid '{path}': {kind} {_SIDES[side]} value. {expected}, but got {got} instead."
        )
        return message, f"{kind}_{side}_value"

    return wording


def _length(side: str, limit_word: str, key: str) -> Callable[[Problem, str], Wording]:
    def wording(problem: Problem, path: str) -> Wording:
        limit, length = problem["ctx"][key], len(problem["input"])
        kind = _kind(problem["input"]).split()[1]
        if length == 0:
            return _empty(kind, limit, path)
        expected = f"Expected {_KINDS[kind]} with {limit_word} length {limit}"
        got = f"but got {_KINDS[kind]} with length {length} instead."
        size = "long" if side == "above_max" else "short"
        return f"Invalid '{path}': {kind} too {size}. {expected}, {got}", f"{kind}_{side}_length"

    return wording


_SIDES = {"above_max": "above maximum", "below_min": "below minimum"}
_KINDS = {"array": "an array", "object": "an object", "string": "a string"}


def _empty(kind: str, minimum: int, path: str) -> Wording:
    expected = f"Expected {_KINDS[kind]} with minimum length {minimum}"
    message = f"Invalid '{path}': empty {kind}. {expected}, but got an empty {kind} instead."
    return message, f"empty_{kind}"


def _not_listed(problem: Problem, path: str) -> Wording:
    value = problem["input"]
    if not isinstance(value, str):
        return _wrong_type(["a string"], value, path)
    supported = problem["ctx"]["expected"].replace(" or ", " and ")
    return f"Invalid value: '{_short(value)}'. Supported values are: {supported}.", "invalid_value"


def _not_finite(problem: Problem, path: str) -> Wording:
    return f"Invalid value for '{path}': expected a finite number.", "invalid_value"


def _other(problem: Problem, path: str) -> Wording:
    return f"Invalid value for '{path}': {problem['msg']}.", "invalid_value"


def _no_kind(problem: Problem, path: str) -> Wording:
    if isinstance(problem["input"], dict):
        return _missing(problem, path)
    return _wrong_type(["an object"], problem["input"], path)


def _unknown_kind(problem: Problem, path: str) -> Wording:
    if forms := _forms(problem):
        return _wrong_type(forms, problem["input"], path)
    tag, tags = problem["ctx"]["tag"][1:-1], problem["ctx"]["expected_tags"]
    supported = re.sub("[<>]", "", tags)
    return f"Invalid value: '{_short(tag)}'. Supported values are: {supported}.", "invalid_value"


def _pattern(problem: Problem, path: str) -> Wording:
    pattern = problem["ctx"]["pattern"]
    expected = f"Expected a string that matches the pattern '{pattern}'."
    message = f"Invalid '{path}': string does not match pattern. {expected}"
    return message, "invalid_value"


_TAG_PROBLEMS = ("union_tag_invalid", "union_tag_not_found")

_WORDINGS: Mapping[str, Callable[[Problem, str], Wording]] = {
    "union_tag_invalid": _unknown_kind,
    "union_tag_not_found": _no_kind,
    "string_pattern_mismatch": _pattern,
    "int_parsing": lambda problem, path: _wrong_type(["an integer"], problem["input"], path),
    "json_invalid": _malformed,
    "missing": _missing,
    "literal_error": _not_listed,
    "finite_number": _not_finite,
    "less_than_equal": _bound("above_max", "<=", "le"),
    "greater_than_equal": _bound("below_min", ">=", "ge"),
    "greater_than": _bound("below_min", ">", "gt"),
    "too_long": _length("above_max", "maximum", "max_length"),
    "too_short": _length("below_min", "minimum", "min_length"),
    "string_too_long": _length("above_max", "maximum", "max_length"),
    "string_too_short": _length("below_min", "minimum", "min_length"),
}
