"""Inference requests and responses as messages: tensors as raw bytes or as typed elements."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import binary_tensors
from openai_frontend.kserve.datatypes import (
    BYTES,
    Datatype,
    TensorInput,
    check_size,
    datatype_named,
    refuse_reserved,
    reject,
)
from openai_frontend.kserve.grpc.messages import message
from openai_frontend.kserve.inference import Answer, InferenceRequest
from openai_frontend.kserve.json_tensors import parts
from openai_frontend.kserve.outputs import RequestedOutput, region_parameters, requested_output
from openai_frontend.kserve.parameters import boolean, read_parameters
from openai_frontend.kserve.shared_memory import (
    Reference,
    SharedInput,
    is_shared_parameter,
    read_reference,
)
from openai_frontend.serving.request.field_policy import FieldPolicy
from schemas.kserve import (
    MAX_DIMENSIONS,
    MAX_ID_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_TENSORS,
)

_InferParameter = message("InferParameter")

# The field of InferTensorContents that has the elements of a datatype. FP16 and BF16 have none.
_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
FINAL_RESPONSE = "triton_final_response"


def parameters_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The values of parameters. Raises InvalidRequest for one without a value."""
    return {name: _value(name, parameter) for name, parameter in fields.items()}


def _value(name: str, parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        shown = name[:128]
        raise InvalidRequest(f"parameter '{shown}': it has no value", param=shown)
    return getattr(parameter, kind)


class RequestReader:
    """Reads ModelInferRequest messages."""

    def __init__(self, policy: FieldPolicy) -> None:
        self._policy = policy

    def read(self, request: Any, parameters: Mapping[str, Any]) -> InferenceRequest:
        """`parameters` are the request's own. Raises InvalidRequest with the tensor's name."""
        _check_sizes(request)
        self._policy.unknown(_unknown_names(request))
        inputs, shared = _inputs(request)
        return InferenceRequest(
            inputs,
            request.id or None,
            read_parameters(parameters),
            _outputs(request),
            shared_inputs=shared,
        )


def _check_sizes(request: Any) -> None:
    """The limits of HTTP's schema (`schemas.kserve`)."""
    for what, tensors in (("inputs", request.inputs), ("outputs", request.outputs)):
        if len(tensors) > MAX_TENSORS:
            raise InvalidRequest(f"{what}: more than {MAX_TENSORS}", param=what)
        for place, tensor in enumerate(tensors):
            if not 0 < len(tensor.name) <= MAX_NAME_CHARACTERS or "\x00" in tensor.name:
                field = f"{what}[{place}].name"
                reason = f"must have 1 to {MAX_NAME_CHARACTERS} characters and no NUL"
                raise InvalidRequest(f"{field}: {reason}", param=field)
    if len(request.id) > MAX_ID_CHARACTERS or "\x00" in request.id:
        raise InvalidRequest(
            f"id: must have at most {MAX_ID_CHARACTERS} characters and no NUL", param="id"
        )


def sends_empty_final(parameters: dict[str, Any]) -> bool:
    """Whether the client wants the empty final response of a decoupled model. Removes its
    parameter, which the core does not take.
    """
    value = parameters.pop(_EMPTY_FINAL_RESPONSE, False)
    return boolean(_EMPTY_FINAL_RESPONSE, value)


def _inputs(request: Any) -> tuple[dict[str, TensorInput], dict[str, SharedInput]]:
    raw = iter(request.raw_input_contents)
    inputs: dict[str, TensorInput] = {}
    shared: dict[str, SharedInput] = {}
    for tensor in request.inputs:
        name = tensor.name
        if name in inputs or name in shared:
            reject(name, "duplicate input")
        refuse_reserved(name)
        if len(tensor.shape) > MAX_DIMENSIONS:
            reject(name, f"its shape has more than {MAX_DIMENSIONS} dimensions")
        place = read_reference(name, parameters_of(tensor.parameters))
        if place is None:
            inputs[name] = _input(tensor, raw, has_raw=bool(request.raw_input_contents))
        else:
            shared[name] = _shared_input(tensor, place)
    left = sum(1 for _ in raw)
    if left:
        raise InvalidRequest(
            f"raw_input_contents has {left} more elements than the request has inputs",
            param="raw_input_contents",
        )
    return inputs, shared


def _shared_input(tensor: Any, place: Reference) -> SharedInput:
    if tensor.HasField("contents"):
        reject(tensor.name, "it is in shared memory: leave out `contents`")
    datatype = datatype_named(tensor.name, tensor.datatype)
    return SharedInput(datatype.name, tuple(tensor.shape), place)


def _input(tensor: Any, raw: Iterator[bytes], *, has_raw: bool) -> TensorInput:
    name, shape = tensor.name, tuple(tensor.shape)
    datatype = datatype_named(name, tensor.datatype)
    if not has_raw:
        data = _elements(name, datatype, tensor.contents)
    else:
        if tensor.HasField("contents"):
            reject(name, "set either its `contents` or `raw_input_contents`, not both")
        found = next(raw, None)
        if found is None:
            reject(name, "raw_input_contents has fewer elements than the request has inputs")
        data = found
    check_size(name, datatype, shape, len(data))
    binary_tensors.check_elements(name, datatype, shape, memoryview(data))
    return datatype.name, shape, data


def _elements(name: str, datatype: Datatype, contents: Any) -> bytes:
    """Bytes of typed elements. Raises InvalidRequest if those of another type are set too."""
    field = _CONTENTS.get(datatype.name)
    if field is None:
        reject(name, f"{datatype.name} has no typed contents; use raw_input_contents")
    others = [each.name for each, _ in contents.ListFields() if each.name != field]
    if others:
        reject(name, f"{datatype.name} must be in `{field}`, not in `{others[0]}`")
    values = getattr(contents, field)
    if datatype is BYTES:
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    if datatype.code == "?":
        return b"".join(map(bytes, parts(values)))
    packed = array(str(datatype.code))
    try:
        for part in parts(values):
            packed.fromlist(part)
    except OverflowError:
        reject(name, f"its data has a number out of range for {datatype.name}")
    return packed.tobytes()


def _outputs(request: Any) -> tuple[RequestedOutput, ...]:
    requested: dict[str, RequestedOutput] = {}
    for output in request.outputs:
        name = output.name
        if name in requested:
            reject(name, "duplicate output")
        parameters = parameters_of(output.parameters)
        classes = parameters.get("classification", 0)
        if isinstance(classes, bool) or not isinstance(classes, int) or not 0 <= classes < 2**31:
            reject(name, f"`classification` must be an integer from 0 to {2**31 - 1}")
        requested[name] = requested_output(name, parameters, binary=None, default_binary=True)
    return tuple(requested.values())


_OUTPUT_PARAMETERS = frozenset({"classification", "binary_data"})


def _unknown_names(request: Any) -> Iterator[str]:
    for place, tensor in enumerate(request.inputs):
        for name in tensor.parameters:
            if name != "binary_data_size" and not is_shared_parameter(name):
                yield f"inputs[{place}].parameters.{name}"
    for place, output in enumerate(request.outputs):
        for name in output.parameters:
            if name not in _OUTPUT_PARAMETERS and not is_shared_parameter(name):
                yield f"outputs[{place}].parameters.{name}"


def write_answer(answer: Answer, response: Any) -> None:
    """Fill an empty ModelInferResponse; the outputs are raw bytes, or in shared memory."""
    response.model_name, response.model_version = answer.model.name, answer.model.version
    if answer.id is not None:
        response.id = answer.id
    for name, value in answer.parameters.items():
        set_parameter(response.parameters[name], value)
    for output, form in answer.tensors():
        tensor = response.outputs.add(
            name=output.name, datatype=output.datatype, shape=output.shape
        )
        if form.region is not None:
            for name, value in region_parameters(output, form.region).items():
                set_parameter(tensor.parameters[name], value)
        # Clients count on an element for each output, an empty one for those in shared memory
        response.raw_output_contents.append(bytes(output.data))


def set_parameter(parameter: Any, value: str | int | bool | float) -> None:
    """Sets the field of the value's type."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def final_parameter(response: Any, *, final: bool) -> None:
    """Marks a response of a stream, of any model, as the request's last one or not."""
    response.parameters[FINAL_RESPONSE].bool_param = final
