"""Validates an adapter's files and detects that they changed.

Reads configs and headers, never weights.
"""

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy

from openai_frontend.json_limits import check_json_depth
from openai_frontend.runtime.files import FileStamp, file_stamp

# Names are also path components: no separators, no leading dot. ":" and "@" delimit model names.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)

Kind = Literal["peft", "tensorrt_llm"]

FILES: dict[Kind, tuple[str, str]] = {
    "peft": ("adapter_config.json", "adapter_model.safetensors"),
    "tensorrt_llm": ("model.lora_config.npy", "model.lora_weights.npy"),
}

Stamp = tuple[FileStamp, ...]  # of each file

_LONGEST_HEADER = 100 * 1024 * 1024  # safetensors' own limit
_LONGEST_JSON = 1024 * 1024  # of other files

# The input dimension of these modules is the model's hidden size.
_READ_HIDDEN_STATE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


class InvalidLoRA(Exception):
    """An adapter that cannot serve. The message has no paths of this machine: clients see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRARequirements:
    """Requirements of a model for its adapters."""

    kind: Kind | None  # None: the backend knows its adapters by name and needs no files
    max_rank: int | None = None
    hidden_size: int | None = None


def stamp(folder: Path | str, kind: Kind) -> Stamp:
    """Identify the folder's content. Raises InvalidLoRA if a file is missing."""
    # Texts: paths would take twice the time of a scan of many adapters
    return tuple([_stamp(f"{folder}/{name}", name) for name in FILES[kind]])


def _stamp(file: str, name: str) -> FileStamp:
    if (stamp := file_stamp(file)) is None:
        raise InvalidLoRA(f"{name} is missing")
    return stamp


def check(folder: Path, requirements: LoRARequirements) -> None:
    """Raise InvalidLoRA if the adapter does not meet the model's requirements."""
    try:
        if requirements.kind == "peft":
            _check_config(read_json(folder / FILES["peft"][0]), requirements)
            _check_weights(folder / FILES["peft"][1], requirements)
        elif requirements.kind == "tensorrt_llm":
            _check_arrays(folder)
    except OSError as error:
        raise InvalidLoRA(f"its files cannot be read: {error.strerror}") from error


def read_json(file: Path) -> dict[str, Any]:
    """An object in a file of at most 1 MiB. Raises InvalidLoRA and OSError."""
    if file.stat().st_size > _LONGEST_JSON:
        raise InvalidLoRA(f"{file.name} is longer than {_LONGEST_JSON} bytes")
    text = file.read_bytes()
    try:
        check_json_depth(text)
        document = json.loads(text)
    except ValueError as error:
        raise InvalidLoRA(f"{file.name} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidLoRA(f"{file.name} is not a JSON object")
    return document


def _check_config(config: dict[str, Any], requirements: LoRARequirements) -> None:
    kind, rank = config.get("peft_type", "LORA"), config.get("r")
    if kind != "LORA":
        raise InvalidLoRA(f"adapter_config.json: peft_type is {str(kind)[:64]!r}, not 'LORA'")
    ranks = [rank, *_values(config.get("rank_pattern"))]
    if any(type(each) is not int or each < 1 for each in ranks):
        raise InvalidLoRA("adapter_config.json: the rank r must be a positive integer")
    highest = max(ranks)
    if requirements.max_rank is not None and highest > requirements.max_rank:
        raise InvalidLoRA(
            f"its rank of {highest} exceeds the model's max_lora_rank of {requirements.max_rank} "
            "(model.json)"
        )


def _values(pattern: Any) -> list[Any]:
    return list(pattern.values()) if isinstance(pattern, dict) else []


def _check_weights(file: Path, requirements: LoRARequirements) -> None:
    """Check that the file is complete and that its hidden size is the model's."""
    shapes, size = _safetensors(file)
    if file.stat().st_size != size:
        raise InvalidLoRA(f"{file.name} is incomplete; it may still be uploading")
    for name, shape in shapes.items():
        module, found, _ = name.partition(".lora_A.")
        width = shape[-1] if shape else None
        fits = requirements.hidden_size in (None, width) or not module.endswith(_READ_HIDDEN_STATE)
        if found and not fits:
            raise InvalidLoRA(
                f"it was trained for a hidden size of {width}; "
                f"the model's is {requirements.hidden_size}"
            )


def _safetensors(file: Path) -> tuple[dict[str, list[int]], int]:
    """Tensor shapes by name and the size of the complete file in bytes, as the header says."""
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        header = opened.read(length) if length <= _LONGEST_HEADER else b""
    try:
        check_json_depth(header)
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        ends = [int(end) for _, end in (each["data_offsets"] for each in tensors.values())]
        shapes = {name: list(map(int, each["shape"])) for name, each in tensors.items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise InvalidLoRA(f"{file.name} is not a valid safetensors file") from None
    return shapes, 8 + length + max(ends, default=0)


def _check_arrays(folder: Path) -> None:
    config, weights = (read_array(folder / name) for name in FILES["tensorrt_llm"])
    if config.ndim < 2 or config.shape[-1] not in (3, 4):
        raise InvalidLoRA(
            f"model.lora_config.npy has the shape {list(config.shape)}, not [1, modules, 3]"
        )
    if weights.ndim < 2 or weights.shape[-2] != config.shape[-2]:
        raise InvalidLoRA(
            f"model.lora_weights.npy has the shape {list(weights.shape)}, not [1, modules, values] "
            f"with the {config.shape[-2]} modules of model.lora_config.npy"
        )


def read_array(file: Path) -> numpy.ndarray[Any, Any]:
    """Map an array into memory without reading it. Never unpickles. Raises InvalidLoRA."""
    try:
        array: numpy.ndarray[Any, Any] = numpy.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidLoRA(f"{file.name} is not a valid .npy file: {error}") from error
    return array
