"""The `parameters` of a request: those of the protocol, and the model's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openai_frontend.errors import InvalidRequest

_MAX_INT = 2**63 - 1  # the core's integers are int64
_RESERVED_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How to schedule and answer a request."""

    priority: int = 0  # 1 is the highest; 0: the model's default
    timeout_us: int = 0  # 0: the model's default
    binary_outputs: bool = False  # for outputs that do not set `binary_data`
    custom: dict[str, str | int | bool | float] = field(default_factory=dict)


def read_parameters(parameters: Mapping[str, Any] | None) -> RequestOptions:
    """Raises InvalidRequest with the parameter's name."""
    options = RequestOptions()
    for name, value in (parameters or {}).items():
        if name in _KNOWN:
            options = _KNOWN[name](options, name, value)
        else:
            options.custom[_key(name)] = _scalar(name, value)
    return options


def _priority(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    return replace(options, priority=_count(name, value))


def _timeout(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    return replace(options, timeout_us=_count(name, value))


def _binary_outputs(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    return replace(options, binary_outputs=boolean(name, value))


def _no_sequence(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    """Accepts only values that mean "no sequence"."""
    if value not in (0, "", False):
        raise _refusal(name, "sequence batching is not supported")
    return options


def _reserved(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    raise _refusal(name, "it is reserved")


_KNOWN: Mapping[str, Callable[[RequestOptions, str, Any], RequestOptions]] = {
    "priority": _priority,
    "timeout": _timeout,
    "binary_data_output": _binary_outputs,
    "sequence_id": _no_sequence,
    "sequence_start": _no_sequence,
    "sequence_end": _no_sequence,
    "headers": _reserved,
}


def _key(name: str) -> str:
    if name.startswith(_RESERVED_PREFIX):
        raise _refusal(name, f"names that begin with '{_RESERVED_PREFIX}' are reserved")
    if not name or "\x00" in name:
        raise _refusal(name, "the name is empty or contains NUL")
    return name


def _scalar(name: str, value: Any) -> str | int | bool | float:
    if isinstance(value, int) and not -_MAX_INT <= value <= _MAX_INT:
        raise _refusal(name, "the integer does not fit into 64 bits")
    if isinstance(value, str) and "\x00" in value:
        raise _refusal(name, "the string contains NUL, which would end it in the core")
    if isinstance(value, str | int | bool | float):
        return value
    raise _refusal(name, "must be a string, a number or a boolean")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INT:
        raise _refusal(name, "must be an integer of at least 0")
    return value


def boolean(name: str, value: Any) -> bool:
    """Raises InvalidRequest with the parameter's name."""
    if not isinstance(value, bool):
        raise _refusal(name, "must be a boolean")
    return value


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{name[:128]}': {reason}", param=name[:128])
