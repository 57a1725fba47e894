"""The `parameters` of a request: those of the protocol, and the model's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.infer_options import SequenceStep

_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1  # the core's integers are int64
_MAX_SEQUENCE_ID = 2**64 - 1
_MAX_SEQUENCE_BYTES = 128  # of UTF-8, as Triton documents
_RESERVED_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How to schedule and answer a request."""

    priority: int = 0  # 1 is the highest; 0: the model's default
    timeout_us: int = 0  # 0: the model's default
    binary_outputs: bool = False  # for outputs that do not set `binary_data`
    sequence: SequenceStep | None = None
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


def _sequence_id(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    if isinstance(value, str):
        if len(value.encode(errors="replace")) > _MAX_SEQUENCE_BYTES or "\x00" in value:
            raise _refusal(name, f"must have at most {_MAX_SEQUENCE_BYTES} bytes and no NUL")
    elif isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(name, "must be an integer or a string")
    elif not 0 <= value <= _MAX_SEQUENCE_ID:
        raise _refusal(name, f"must be from 0 to {_MAX_SEQUENCE_ID}")
    return _with_sequence(options, id=value or 0)


def _sequence_start(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    return _with_sequence(options, start=boolean(name, value))


def _sequence_end(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    return _with_sequence(options, end=boolean(name, value))


def _with_sequence(options: RequestOptions, **changes: Any) -> RequestOptions:
    step = replace(options.sequence or SequenceStep(0), **changes)
    return replace(options, sequence=None if step == SequenceStep(0) else step)


def _reserved(options: RequestOptions, name: str, value: Any) -> RequestOptions:
    raise _refusal(name, "it is reserved")


_KNOWN: Mapping[str, Callable[[RequestOptions, str, Any], RequestOptions]] = {
    "priority": _priority,
    "timeout": _timeout,
    "binary_data_output": _binary_outputs,
    "sequence_id": _sequence_id,
    "sequence_start": _sequence_start,
    "sequence_end": _sequence_end,
    "headers": _reserved,
}


def is_reserved(name: str) -> bool:
    """Whether a parameter of this name has a meaning in the protocol or in the core."""
    return name in _KNOWN or name.startswith(_RESERVED_PREFIX)


def _key(name: str) -> str:
    if name.startswith(_RESERVED_PREFIX):
        raise _refusal(name, f"names that begin with '{_RESERVED_PREFIX}' are reserved")
    if not name or "\x00" in name:
        raise _refusal(name, "the name is empty or contains NUL")
    return name


def _scalar(name: str, value: Any) -> str | int | bool | float:
    if isinstance(value, int) and not _MIN_INT <= value <= _MAX_INT:
        raise _refusal(name, "the integer does not fit into 64 bits")
    if isinstance(value, str) and "\x00" in value:
        raise _refusal(name, "the string contains NUL, which would end it in the core")
    if isinstance(value, str | int | bool | float):
        return value
    raise _refusal(name, "must be a string, a number or a boolean")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INT:
        raise _refusal(name, f"must be an integer from 0 to {_MAX_INT}")
    return value


def boolean(name: str, value: Any) -> bool:
    """Raises InvalidRequest with the parameter's name."""
    if not isinstance(value, bool):
        raise _refusal(name, "must be a boolean")
    return value


def _refusal(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"parameter '{name[:128]}': {reason}", param=name[:128])
