"""Parses YAML into plain values. Every failure is one error with a one-line message, as are the
problems that pydantic finds in the values.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

_SHARED = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 20 times as fast, if built with libyaml


class _Loader(_SHARED):  # type: ignore[misc,valid-type]  # one of two
    """Independent of changes that other libraries make to the tables shared by all loaders."""

    yaml_implicit_resolvers: ClassVar = {
        first: [*each] for first, each in _SHARED.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar = _SHARED.yaml_constructors | {
        # lm-format-enforcer, a dependency of vLLM, turns dates into text for every shared loader.
        "tag:yaml.org,2002:timestamp": _SHARED.construct_yaml_timestamp,
    }


# Besides its own errors, the loader raises those of constructing a value: "2030-13-01" a
# ValueError, "!!bool x" a KeyError, "!!timestamp x" an AttributeError.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    yaml.YAMLError,
)


class InvalidYaml(ValueError):
    """Invalid YAML. The message is the loader's, on one line; `line` counts from 1."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split()) or type(error).__name__)
        mark = None
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
        self.line: int | None = None if mark is None else mark.line + 1


def parse(text: str) -> Any:
    """Raises InvalidYaml."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a safe loader
    except _FAILURES as error:
        raise InvalidYaml(error) from None


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


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Describe one of pydantic's ErrorDetails, without the value."""
    text = _TEXTS.get(problem["type"])
    if text is None:
        return str(problem["msg"]).removeprefix("Value error, ")
    return text.format_map(problem.get("ctx", {}))
