"""JSON that the schemas do not describe further, such as a JSON schema or the input of a tool."""

from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, ValidationInfo, with_config
from pydantic_core import InitErrorDetails, ValidationError

Path = tuple[str | int, ...]


def _all_finite(value: Any, info: ValidationInfo) -> Any:
    """Refuse `1e999`: pydantic's parser reads it as infinity, which JSON cannot hold. orjson, whose
    values are Python objects here, refuses it itself.
    """
    if info.mode == "json" and (found := _infinite(value, ())) is not None:
        path, number = found
        problem = InitErrorDetails(type="finite_number", loc=path, input=number)
        raise ValidationError.from_exception_data("JSON", [problem])
    return value


def _infinite(value: Any, path: Path) -> tuple[Path, float] | None:
    """The first infinite number and its path."""
    if type(value) is float:
        return None if isfinite(value) else (path, value)
    members: Iterable[tuple[str | int, Any]] = ()
    if type(value) is dict:
        members = value.items()
    elif type(value) is list:
        members = enumerate(value)
    for name, member in members:
        # Strings and integers are most members: 0.03 us each instead of 0.2
        if type(member) in _MAY_BE_INFINITE and (found := _infinite(member, (*path, name))):
            return found
    return None


_MAY_BE_INFINITE = frozenset({float, dict, list})

JSONValue = Annotated[Any, AfterValidator(_all_finite)]
JSONObject = Annotated[dict[str, Any], AfterValidator(_all_finite)]

Kind = TypeVar("Kind", bound=type)


def open_object(kind: Kind) -> Kind:
    """Let a TypedDict have members that it does not declare. They are any JSON."""
    kind.__extra_items__ = JSONValue  # type: ignore[attr-defined]  # PEP 728's, new for mypy
    return with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="allow"))(kind)
