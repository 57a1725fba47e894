"""Bodies of KServe inference: JSON with binary tensors after it, or the bytes of one tensor.

Tensors for the core have the size of their shape.
"""

from math import prod
from typing import Any

from openai_frontend.kserve import binary_tensors
from openai_frontend.kserve.datatypes import DATATYPES, check_size
from openai_frontend.kserve.infer import InferService, json_length
from openai_frontend.kserve.inference import Inference, InferenceRequest, TensorModel
from openai_frontend.kserve.models import ModelAddress
from openai_frontend.serving.request.field_policy import FieldPolicy
from scripts.fuzz.draw import Draw
from scripts.fuzz.outcome import outcome

WORDS = (
    *('"inputs":[', '"name":"a"', '"shape":[', '"datatype":"', '"data":[', '"parameters":{'),
    *('"binary_data_size":', '"outputs":[', '"binary_data":true', '"classification":2'),
    *(
        '"shared_memory_region":"a"',
        '"shared_memory_byte_size":4',
        '"timeout":1',
        '"priority":1',
        "[[1],[2]]",
        "-1",
        "9" * 19,
    ),
    *DATATYPES,
)
_BINARY = (
    b'{"inputs":[{"name":"a","shape":[2],"datatype":"INT16","parameters":{"binary_data_size":4}}]}'
)
SEEDS = (
    b"\x00\x00" + _BINARY + b"\x01\x00\x02\x00",
    bytes([0, 1, len(_BINARY)]) + _BINARY + b"\x01\x00\x02\x00",
    bytes([1, 2]) + b"\x01\x00\x00\x00a",
    b'\x00\x00{"inputs":[{"name":"a","shape":[2,1],"datatype":"FP32","data":[[1.5],[2]]}]}',
    b'\x00\x00{"inputs":[{"name":"a","shape":[1],"datatype":"BYTES","data":["b"]}],"outputs":[]}',
)


class _Models:
    """The part of the core that reading a body needs."""

    INPUTS = (
        [{"name": "a", "datatype": "INT16", "shape": [-1]}],
        [{"name": "a", "datatype": "BYTES", "shape": [1, -1]}],
        [{"name": "a", "datatype": "FP32", "shape": [2, -1]}],
        [{"name": name, "datatype": "BOOL", "shape": [1]} for name in "ab"],
    )

    def __init__(self, inputs: list[dict[str, Any]]) -> None:
        self._inputs = inputs

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        return {"inputs": self._inputs}

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        return {"max_batch_size": len(self._inputs) - 1}

    def model_is_decoupled(self, name: str, version: int = -1) -> bool:
        return False


def check(data: bytes) -> None:
    draw = Draw(data)
    models, way = _Models(draw.choice(_Models.INPUTS)), draw.byte() % 3
    length: str | None = None
    if way == 1:
        length = str(draw.byte() + 256 * draw.byte())
    elif way == 2:
        length = "0"
    body = draw.rest()
    inference = Inference(models, None, None)  # type: ignore[arg-type]
    requests = InferService(inference, FieldPolicy("reject"))
    model = TensorModel(models, ModelAddress("a"))  # type: ignore[arg-type]

    def read() -> InferenceRequest:
        return requests._read(model, body, json_length(length, len(body)))

    kind, request = outcome(read)
    if kind == "value":
        # JSON may have no inputs; bytes without JSON are one
        assert request.inputs or not body or length != "0"
        for name, (datatype, shape, tensor) in request.inputs.items():
            check_size(name, DATATYPES[datatype], shape, len(tensor))
            if datatype == "BYTES":
                found = list(binary_tensors.elements(name, prod(shape), memoryview(tensor)))
                assert sum(end - start + 4 for start, end in found) == len(tensor)
