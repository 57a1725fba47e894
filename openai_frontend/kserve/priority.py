"""The priority of a client with a key, at most the key's own: 0, as only such keys may send
tensors. Below /v1 the same limit applies.
"""

import struct
from math import prod

from openai_frontend.kserve.datatypes import TensorInput, reject
from openai_frontend.kserve.models import Core, ModelAddress

_NAME = "priority"
_DATATYPE = "INT32"


def limited(
    inputs: dict[str, TensorInput], core: Core, model: ModelAddress, key: str
) -> dict[str, TensorInput]:
    """The inputs with a priority that an engine in this process may give to the key's request.

    Other backends may mean something else by the name. Raises InvalidRequest.
    """
    if not key or _NAME not in inputs:
        return inputs
    if core.model_config(model.name, model.version).get("backend") != "inprocess":
        return inputs
    datatype, shape, data = inputs[_NAME]
    if datatype != _DATATYPE or prod(shape) != 1:
        reject(_NAME, f"must be one element of {_DATATYPE}")
    (priority,) = struct.unpack("<i", data)
    return {**inputs, _NAME: (datatype, shape, struct.pack("<i", max(priority, 0)))}
