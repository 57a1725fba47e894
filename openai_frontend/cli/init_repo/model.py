"""One model of a repository that is about to be written, and tables of tensors for its config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RepositoryModel:
    """A model's folder: what is ours in it, and what is NVIDIA's."""

    name: str
    config: Mapping[str, Any]  # of config.pbtxt, in the shape of Triton's JSON
    serves: bool = True  # requests may name it; it is no mere part of another
    options: Mapping[str, Any] = field(default_factory=dict)  # of openai_frontend.yaml
    files: Mapping[str, str] = field(default_factory=dict)  # path within the folder -> text
    nvidia_folder: str | None = None  # where NVIDIA's models have this one's program
    nvidia_files: tuple[str, ...] = ()  # paths within that folder and this one, all needed


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
