"""Outputs of an inference response: as JSON, as binary data, or as their top classes."""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import merge, nlargest
from itertools import islice
from math import prod
from typing import Any, Protocol

import orjson

from openai_frontend.kserve import json_tensors
from openai_frontend.kserve.datatypes import BYTES, as_numbers, datatype_named, reject
from openai_frontend.kserve.shared_memory import Reference, read_reference


class CoreTensor(Protocol):
    """An output of the core; the buffer protocol exposes its memory."""

    @property
    def name(self) -> str:
        """The output's name."""

    @property
    def dtype(self) -> str:
        """Triton's datatype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Includes the batch dimension if the model has one."""


_STEP = 16 * 1024  # elements sorted in one step: 8 ms

Label = Callable[[int], str | None]  # of a class, by its index


@dataclass(slots=True)  # freezing would cost each token 1 us
class OutputTensor:
    """A tensor that a model returned."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview  # flat, in bytes
    label: Label | None = None  # of a class; None if it was not asked for
    placed_bytes: int = 0  # in shared memory instead of `data`

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """The form in which a client requests an output."""

    name: str
    binary: bool = False
    classes: int = 0  # if set, this many of the highest elements with their indices instead of all
    region: Reference | None = None  # if set, the bytes go there instead of into the response


def placed_output(tensor: Any) -> OutputTensor:
    """An output whose bytes are in shared memory. `tensor`: a CoreTensor."""
    return OutputTensor(
        tensor.name, tensor.dtype, tensor.shape, memoryview(b""), placed_bytes=tensor.nbytes
    )


def requested_output(
    name: str, parameters: Mapping[str, Any], *, binary: bool | None, default_binary: bool
) -> RequestedOutput:
    """The form of an output, from its parameters; `binary` is None if they do not say.

    Raises InvalidRequest with the tensor's name.
    """
    classes = parameters.get("classification") or 0
    region = read_reference(name, parameters)
    if region is not None and classes:
        reject(name, "set either `shared_memory_region` or `classification`, not both")
    if region is not None and binary:
        reject(name, "set either `shared_memory_region` or `binary_data`, not both")
    is_binary = default_binary if binary is None else binary
    return RequestedOutput(name, binary=is_binary, classes=classes, region=region)


def read_output(tensor: Any, label: Label | None = None) -> OutputTensor:
    """`tensor`: a CoreTensor."""
    data = memoryview(tensor).cast("B")
    return OutputTensor(tensor.name, tensor.dtype, tensor.shape, data, label)


def region_parameters(output: OutputTensor, place: Reference) -> dict[str, str | int]:
    """The parameters of an output in shared memory: its region, offset and real size."""
    return replace(place, byte_size=output.placed_bytes).parameters


def encode_output(output: OutputTensor, form: RequestedOutput) -> tuple[bytes, memoryview | None]:
    """The output's JSON, and its bytes if they follow the JSON."""
    head: dict[str, Any] = {
        "name": output.name,
        "datatype": output.datatype,
        "shape": output.shape,
    }
    if form.region is not None:
        return orjson.dumps({**head, "parameters": region_parameters(output, form.region)}), None
    if form.binary:
        head["parameters"] = {"binary_data_size": output.data.nbytes}
        return orjson.dumps(head), output.data
    datatype = datatype_named(output.name, output.datatype)
    data = json_tensors.encode(output.name, datatype, output.shape, output.data)
    return orjson.dumps(head)[:-1] + b',"data":' + data + b"}", None


def top_classes(output: OutputTensor, classes: int, *, batches: bool) -> OutputTensor:
    """The highest elements of each batch entry as BYTES, the highest first: `value:index`, or
    `value:index:label` for a class with a label.
    """
    code = datatype_named(output.name, output.datatype).code
    if code is None or code == "?":
        reject(output.name, f"classification is not supported for {output.datatype}")
    entries = output.shape[0] if batches and output.shape else 1
    values = as_numbers(output.data, code)
    length = len(values) // entries if entries else 0
    texts = [
        text
        for entry in range(entries)
        for text in _highest(values[entry * length : (entry + 1) * length], classes, output.label)
    ]
    count = min(classes, length)
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    shape = (entries, count) if batches and output.shape else (count,)
    return OutputTensor(output.name, BYTES.name, shape, memoryview(data))


def _sorted(values: memoryview, count: int) -> list[int]:
    """Indices of the highest values. In steps, as callers run this beside an event loop: one sort
    of 4 million would hold the interpreter for seconds.
    """
    parts = []
    for start in range(0, len(values), _STEP):
        part = values[start : start + _STEP].tolist()
        indices = nlargest(count, range(len(part)), key=part.__getitem__)
        parts.append(array("q", [start + index for index in indices]))
    return list(islice(merge(*parts, key=values.__getitem__, reverse=True), count))


def _highest(values: memoryview, count: int, label: Label | None) -> list[bytes]:
    indices = _sorted(values, count)
    texts = [f"{_number(values[index])}:{index}" for index in indices]
    if label is not None:
        found = [label(index) for index in indices]
        texts = [
            text if name is None else f"{text}:{name}"
            for text, name in zip(texts, found, strict=True)
        ]
    return [text.encode() for text in texts]


def _number(value: float) -> str:
    """In Triton's format: six decimal places, none for integers."""
    return f"{value:f}" if isinstance(value, float) else str(value)
