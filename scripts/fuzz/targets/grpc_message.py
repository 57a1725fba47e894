"""Messages of gRPC inference: tensors for the core have the size of their shape, and every other
message is refused with a text that gRPC can carry.
"""

from math import prod

from openai_frontend.kserve import binary_tensors
from openai_frontend.kserve.datatypes import DATATYPES, check_size
from openai_frontend.kserve.grpc.calls import parsed
from openai_frontend.kserve.grpc.messages import INFERENCE, methods
from openai_frontend.kserve.grpc.tensors import RequestReader, parameters_of, sends_empty_final
from openai_frontend.kserve.inference import InferenceRequest
from openai_frontend.serving.request.field_policy import FieldPolicy
from scripts.fuzz.outcome import outcome

_METHOD = methods(INFERENCE)["ModelInfer"]
_READER = RequestReader(FieldPolicy("reject"))

WORDS = (*DATATYPES, "sequence_id", "priority", "timeout", "classification", "IN", "\x01", "\xff")


def _seed(datatype: str, raw: bytes, **contents: object) -> bytes:
    message = _METHOD.request(model_name="a", model_version="1", id="7")
    message.inputs.add(name="IN", datatype=datatype, shape=[2], contents=contents or None)
    message.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    message.parameters["timeout"].uint64_param = 5
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    if raw:
        message.raw_input_contents.append(raw)
    serialized: bytes = message.SerializeToString()
    return serialized


SEEDS = (
    _seed("FP32", b"\0" * 8),
    _seed("BYTES", b"\x01\0\0\0a\0\0\0\0"),
    _seed("INT8", b"", int_contents=[1, -1]),
    _seed("BYTES", b"", bytes_contents=[b"a", b""]),
    _seed("BOOL", b"", bool_contents=[True, False]),
    b"",
)


def check(data: bytes) -> None:
    def read() -> InferenceRequest:
        message = parsed(_METHOD, data)
        parameters = parameters_of(message.parameters)
        sends_empty_final(parameters)
        return _READER.read(message, parameters)

    kind, request = outcome(read)
    if kind == "value":
        for name, (datatype, shape, tensor) in request.inputs.items():
            assert name
            check_size(name, DATATYPES[datatype], shape, len(tensor))
            if datatype == "BYTES":
                found = list(binary_tensors.elements(name, prod(shape), memoryview(tensor)))
                assert sum(end - start + 4 for start, end in found) == len(tensor)
