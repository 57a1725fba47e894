"""Readable texts of pydantic's validation errors, for settings and operators' files."""

from collections.abc import Mapping
from typing import Any

# https://docs.pydantic.dev/latest/errors/validation_errors/; fields are from the error's `ctx`
_TEXTS: Mapping[str, str] = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
    "path_type": "must be a path",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_short": "must have {min_length} or more values",
    "missing": "is missing",
    "extra_forbidden": "unknown option",
}


def describe(problem: Mapping[str, Any]) -> str:
    """Describe one of pydantic's ErrorDetails, without the value."""
    text = _TEXTS.get(problem["type"])
    if text is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    return text.format_map(problem.get("ctx", {}))
