"""YAML that a file holds, as plain values. Whatever is wrong with it is one error, in one line."""

from typing import Any, ClassVar

import yaml

_SHARED = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 20 times as fast, where it is built


class _Loader(_SHARED):  # type: ignore[misc,valid-type]  # one of two
    """Reads what it reads now, whatever other libraries do to the tables that all loaders share."""

    yaml_implicit_resolvers: ClassVar = {
        first: [*each] for first, each in _SHARED.yaml_implicit_resolvers.items()
    }
    yaml_constructors: ClassVar = _SHARED.yaml_constructors | {
        # lm-format-enforcer, a part of vLLM, makes dates plain text for everybody that shares it.
        "tag:yaml.org,2002:timestamp": _SHARED.construct_yaml_timestamp,
    }


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
