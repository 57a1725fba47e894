"""A model of a repository to be written, and tables of tensors for its config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RepositoryModel:
    """A model's folder: our files, and NVIDIA's that it needs."""

    name: str
    config: Mapping[str, Any]  # config.pbtxt in the shape of Triton's JSON
    serves: bool = True  # requests may name it; not only an ensemble step
    options: Mapping[str, Any] = field(default_factory=dict)  # openai_frontend.yaml
    files: Mapping[str, str] = field(default_factory=dict)  # path within the folder -> text
    nvidia_folder: str | None = None  # of this model's Python files in NVIDIA's image
    nvidia_files: tuple[str, ...] = ()  # required paths within that folder


_FLAGS: Mapping[str, Mapping[str, Any]] = {
    "optional": {"optional": True},
    "ragged": {"allow_ragged_batch": True},
    "scalar": {"reshape": {"shape": []}},  # the model sees only the batch dimension
}


def tensors(table: str, datatypes: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """`input` or `output` of a config, from one line per tensor: name, datatype, dims, flags.

    `datatypes` replace `$NAME` in the table.
    """
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
    """`parameters` of a config."""
    return {key: {"string_value": value} for key, value in values.items()}
