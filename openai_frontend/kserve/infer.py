"""POST infer: tensors in, tensors out, each as JSON or as binary data."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import binary_tensors, json_tensors
from openai_frontend.kserve.binary_tensors import BinaryTail, raw_input
from openai_frontend.kserve.datatypes import (
    TensorInput,
    check_size,
    datatype_named,
    refuse_reserved,
    reject,
)
from openai_frontend.kserve.inference import (
    Answer,
    Inference,
    InferenceRequest,
    TensorModel,
    refuse_decoupled,
    response_head,
)
from openai_frontend.kserve.models import ModelAddress, offload
from openai_frontend.kserve.outputs import RequestedOutput, encode_output, requested_output
from openai_frontend.kserve.parameters import RequestOptions, read_parameters
from openai_frontend.kserve.shared_memory import Reference, SharedInput, read_reference
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import InferRequest, OutputParameters, RegionParameters, RequestInput
from schemas.sampling import RequestFields

JSON_LENGTH_HEADER = "inference-header-content-length"

DECOUPLED = (
    "infer does not support models with decoupled transaction policy: use generate or "
    "generate_stream"
)


@dataclass(frozen=True, slots=True)
class InferResult:
    """A response's JSON and the tensor bytes that follow it."""

    json: bytes
    tail: tuple[memoryview, ...] = ()


def json_length(text: str | None, body_bytes: int) -> int:
    """The JSON's length, from the header's value `text`. Without it, all of the body is JSON.

    0 means that the body is the bytes of the model's only input.
    """
    if text is None:
        return body_bytes
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidRequest(
            f"{JSON_LENGTH_HEADER} must be a number of bytes, not '{text[:32]}'",
            param=JSON_LENGTH_HEADER,
        )
    length = int(text)
    if length > body_bytes:
        message = f"{JSON_LENGTH_HEADER} is {length}, but the body has {body_bytes} bytes"
        raise InvalidRequest(message, param=JSON_LENGTH_HEADER)
    return length


class InferService:
    """Answers infer requests."""

    def __init__(self, inference: Inference, policy: FieldPolicy) -> None:
        self._inference = inference
        self._policy = policy
        self._reader = BodyReader(InferRequest)

    async def create(
        self,
        model: ModelAddress,
        body: bytes,
        header_length: str | None,
        context: RequestContext,
    ) -> InferResult:
        """`header_length`: `JSON_LENGTH_HEADER`'s value."""
        read = partial(self._read, body=body, json_bytes=json_length(header_length, len(body)))
        async with self._inference.run(context, model, read, byte_size=len(body)) as running:
            answer = await running.single()
        return await offload(partial(_result, answer), byte_size=answer.byte_size)

    def _read(self, model: TensorModel, body: bytes, json_bytes: int) -> InferenceRequest:
        refuse_decoupled(model, DECOUPLED)
        if json_bytes == 0 and body:
            inputs = raw_input(model.metadata["inputs"], memoryview(body), batches=model.batches)
            return InferenceRequest(inputs, options=RequestOptions(binary_outputs=True))
        request = self._reader.parse(body[:json_bytes])
        self._policy.unknown(_unknown_names(request))
        options = read_parameters(request.parameters)
        inputs, shared = _inputs(request.inputs, BinaryTail(memoryview(body)[json_bytes:]))
        wanted = _wanted(request, options)
        return InferenceRequest(inputs, request.id, options, wanted, shared_inputs=shared)


def _inputs(
    tensors: Iterable[RequestInput], tail: BinaryTail
) -> tuple[dict[str, TensorInput], dict[str, SharedInput]]:
    inputs: dict[str, TensorInput] = {}
    shared: dict[str, SharedInput] = {}
    for tensor in tensors:
        name = tensor.name
        if name in inputs or name in shared:
            reject(name, "duplicate input")
        refuse_reserved(name)
        place = read_reference(name, _region_parameters(tensor.parameters))
        if place is None:
            inputs[name] = _input(tensor, tail)
        else:
            shared[name] = _shared_input(tensor, place)
    tail.check_end()
    return inputs, shared


def _shared_input(tensor: RequestInput, place: Reference) -> SharedInput:
    parameters = tensor.parameters
    if tensor.data is not None or (parameters and parameters.binary_data_size is not None):
        reject(tensor.name, "it is in shared memory: leave out `data` and `binary_data_size`")
    datatype = datatype_named(tensor.name, tensor.datatype)
    return SharedInput(datatype.name, tuple(tensor.shape), place)


def _region_parameters(parameters: RegionParameters | None) -> dict[str, Any]:
    if parameters is None:
        return {}
    return parameters.model_dump(include=set(RegionParameters.model_fields))


def _input(tensor: RequestInput, tail: BinaryTail) -> TensorInput:
    datatype = datatype_named(tensor.name, tensor.datatype)
    parameters = tensor.parameters
    size = None if parameters is None else parameters.binary_data_size
    if (size is None) == (tensor.data is None):
        reject(tensor.name, "set either `data` or the parameter `binary_data_size`")
    if size is None:
        data: bytes | memoryview = json_tensors.decode(
            tensor.name, datatype, tensor.shape, tensor.data
        )
    else:
        check_size(tensor.name, datatype, tensor.shape, size)
        data = tail.take(tensor.name, size)
        binary_tensors.check_elements(tensor.name, datatype, tensor.shape, data)
    return datatype.name, tuple(tensor.shape), data


def _wanted(request: InferRequest, options: RequestOptions) -> tuple[RequestedOutput, ...]:
    requested: dict[str, RequestedOutput] = {}
    for each in request.outputs or ():
        parameters = each.parameters or OutputParameters()
        if each.name in requested:
            reject(each.name, "duplicate output")
        requested[each.name] = requested_output(
            each.name,
            {"classification": parameters.classification, **_region_parameters(parameters)},
            binary=parameters.binary_data,
            default_binary=options.binary_outputs,
        )
    return tuple(requested.values())


def _unknown_names(request: InferRequest) -> Iterable[str]:
    """Allows model_name and model_version, which Triton's documentation shows in requests."""
    yield from (
        name for name in request.model_extra or () if name not in ("model_name", "model_version")
    )
    for place, each in enumerate(request.inputs):
        yield from _unknown_members(f"inputs[{place}]", each, each.parameters)
    for place, wanted in enumerate(request.outputs or ()):
        yield from _unknown_members(f"outputs[{place}]", wanted, wanted.parameters)


def _unknown_members(
    where: str, tensor: RequestFields, parameters: RequestFields | None
) -> Iterable[str]:
    yield from (f"{where}.{name}" for name in tensor.model_extra or ())
    extra = parameters.model_extra if parameters is not None else None
    yield from (f"{where}.parameters.{name}" for name in extra or ())


def _result(answer: Answer) -> InferResult:
    written = [encode_output(output, form) for output, form in answer.tensors()]
    members = dict(response_head(answer))
    if answer.parameters:
        members["parameters"] = dict(answer.parameters)
    texts = b",".join(text for text, _ in written)
    json = orjson.dumps(members)[:-1] + b',"outputs":[' + texts + b"]}"
    return InferResult(json, tuple(data for _, data in written if data is not None))
