"""Tables of tensors as text, a line for each: name, datatype, dims, then what else is said."""

from collections.abc import Mapping
from typing import Any

_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "optional": {"optional": True},
    "ragged": {"allow_ragged_batch": True},
    "scalar": {"reshape": {"shape": []}},  # the model sees no dimension but the batch's
}


def tensors(table: str, datatypes: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The members `input` or `output` of a config. `datatypes` stand for the table's `$NAME`."""
    return [_tensor(line.split(), datatypes or {}) for line in table.splitlines() if line]


def _tensor(words: list[str], datatypes: Mapping[str, str]) -> dict[str, Any]:
    name, datatype, dims, *flags = words
    tensor: dict[str, Any] = {
        "name": name,
        "data_type": "TYPE_" + datatypes.get(datatype, datatype),
        "dims": [int(size) for size in dims.split(",")],
    }
    for flag in flags:
        tensor |= _FLAGS[flag]
    return tensor


def parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """The member `parameters` of a config."""
    return {key: {"string_value": value} for key, value in values.items()}
