"""YAML that a file holds, as plain values. Whatever is wrong with it is one error, in one line."""

from typing import Any

import yaml

_SHARED = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 20 times as fast, where it is built
_TABLE = "yaml_implicit_resolvers"


class _Loader(_SHARED):  # type: ignore[misc,valid-type]  # one of two
    """Reads plain words as it does now, whatever other libraries do to the shared table."""


setattr(_Loader, _TABLE, {first: [*each] for first, each in getattr(_SHARED, _TABLE).items()})


# Besides its own errors, the loader lets out what the making of a value raises: "2030-13-01" a
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
    """It is no YAML; the message is one line, in the loader's words. `line` counts from 1."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split()) or type(error).__name__)
        mark = None
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
        self.line: int | None = None if mark is None else mark.line + 1


def parse(text: str) -> Any:
    """The value that the text says. Raises InvalidYaml."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  it is a safe one
    except _FAILURES as error:
        raise InvalidYaml(error) from None
