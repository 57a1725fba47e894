"""Triton's generate requests: a flat JSON object whose fields are a model's inputs by name, and its
other parameters; and the responses in the same form.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from openai_frontend.contracts.kserve import json_tensor
from openai_frontend.contracts.kserve.datatypes import TensorInput, known, refuse
from openai_frontend.contracts.kserve.output import Output
from openai_frontend.errors import InvalidRequest

NESTED = "parameters"  # may hold what may also stand beside it


@dataclass(frozen=True, slots=True)
class Fields:
    """What a request's fields are to the model."""

    inputs: dict[str, TensorInput] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


def read(request: Mapping[str, Any], declared: Iterable[Mapping[str, Any]]) -> Fields:
    """`declared`: the model metadata's inputs. Raises InvalidRequest, which names the field."""
    metadata = {tensor["name"]: tensor for tensor in declared}
    fields = Fields()
    for name, value in _flat(request, NESTED in metadata):
        if name in fields.inputs or name in fields.parameters:
            raise InvalidRequest(f"'{name[:128]}' is given twice", param=name[:128])
        if name in metadata:
            fields.inputs[name] = _input(metadata[name], value)
        else:
            fields.parameters[name] = value
    return fields


def _flat(request: Mapping[str, Any], is_input: bool) -> Iterable[tuple[str, Any]]:
    for name, value in request.items():
        if name != NESTED or is_input:
            yield name, value
        elif isinstance(value, dict):
            yield from value.items()
        else:
            raise InvalidRequest(f"'{NESTED}' is no object", param=NESTED)


def _input(declared: Mapping[str, Any], value: Any) -> TensorInput:
    name = declared["name"]
    datatype = known(name, declared["datatype"])
    values = value if isinstance(value, list) else [value]
    shape = _shape(name, declared["shape"], len(values))
    return datatype.name, shape, json_tensor.decode(name, datatype, shape, values)


def _shape(tensor: str, declared: Sequence[int], count: int) -> tuple[int, ...]:
    """The declared shape with its free dimensions set: the innermost takes all, others are 1."""
    shape = [int(dimension) for dimension in declared]
    left = count
    for fixed in shape:
        if fixed > 0:
            if left % fixed:
                refuse(tensor, f"{count} elements do not fit its shape {shape}")
            left //= fixed
    for place in reversed(range(len(shape))):
        if shape[place] < 0:
            shape[place], left = left, 1
    if left != 1:
        refuse(tensor, f"{count} elements do not fit its shape {list(declared)}")
    return tuple(shape)


def written(
    head: Mapping[str, Any], outputs: Iterable[Output], parameters: Mapping[str, Any]
) -> bytes:
    """One response: `head`, parameters and outputs side by side; one element stands for itself."""
    members = {name: orjson.dumps(value) for name, value in {**head, **parameters}.items()}
    for output in outputs:
        text = json_tensor.encode(
            output.name, known(output.name, output.datatype), output.shape, output.data
        )
        members[output.name] = text[1:-1] if output.count == 1 else text
    pairs = [orjson.dumps(name) + b":" + text for name, text in members.items()]
    return b"{" + b",".join(pairs) + b"}"
