"""Prompt embedding tables of TensorRT-LLM: the files that an operator names, as arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from openai_frontend.errors import ModelUnavailable


def read(files: Mapping[str, str]) -> dict[str, Any]:
    """Name -> numpy array [tokens, hidden size], left on the disk until it is sent.

    Raises ModelUnavailable with the file that is none.
    """
    return {name: _table(name, Path(path)) for name, path in files.items()}


def _table(name: str, path: Path) -> Any:
    try:
        array: numpy.ndarray[Any, Any] = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ModelUnavailable(f"its prompt table '{name}': {path}: {error}") from error
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2:
        shape = list(array.shape)
        raise ModelUnavailable(f"its prompt table '{name}' is {shape}, not [tokens, hidden size]")
    return array
