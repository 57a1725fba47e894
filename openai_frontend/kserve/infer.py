"""POST infer: tensors in, tensors out, each as JSON or as binary data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from openai_frontend.errors import InferenceFailed, InvalidRequest
from openai_frontend.kserve import binary_tensors, cache_salt, json_tensors, priority
from openai_frontend.kserve.binary_tensors import BinaryTail, raw_input
from openai_frontend.kserve.datatypes import (
    TensorInput,
    check_size,
    datatype_named,
    refuse_reserved,
    reject,
)
from openai_frontend.kserve.models import (
    Core,
    CoreResponse,
    ModelAddress,
    ModelAdmission,
    offload,
    response_head,
)
from openai_frontend.kserve.outputs import (
    OutputTensor,
    RequestedOutput,
    encode_output,
    read_output,
    top_classes,
)
from openai_frontend.kserve.parameters import RequestOptions, read_parameters
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import InferRequest, OutputParameters, RequestInput
from schemas.sampling import RequestFields

JSON_LENGTH_HEADER = "inference-header-content-length"

DECOUPLED = (
    "infer does not support models with decoupled transaction policy: use generate or "
    "generate_stream"
)


@dataclass(frozen=True, slots=True)
class ParsedInferRequest:
    """An infer request, ready for the core, and the form of each output."""

    inputs: dict[str, TensorInput]
    id: str | None = None
    options: RequestOptions = field(default_factory=RequestOptions)
    outputs: tuple[RequestedOutput, ...] = ()  # empty: all of the model's outputs


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

    def __init__(self, core: Core, admission: ModelAdmission, policy: FieldPolicy) -> None:
        self._core = core
        self._admission = admission
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
        json_bytes = json_length(header_length, len(body))
        async with self._admission.use(context, model):
            if self._core.model_is_decoupled(model.name, model.version):
                raise InvalidRequest(DECOUPLED, param="model")
            read = partial(self._read, model, body, json_bytes)
            parsed = await offload(read, byte_size=len(body))
            # Before the inference: meanwhile the model may be unloaded, or another version loaded
            head = response_head(self._core, model, parsed.id)
            async with self._admission.slot(context, model, parsed.options) as options:
                timed = replace(parsed, options=options)
                response = await self._infer(model, timed, context)
            return await self._written(model, parsed, response, head)

    def _read(self, model: ModelAddress, body: bytes, json_bytes: int) -> ParsedInferRequest:
        if json_bytes == 0 and body:
            metadata = self._core.model_metadata(model.name, model.version)
            inputs = raw_input(metadata["inputs"], memoryview(body), batches=self._batches(model))
            return ParsedInferRequest(inputs, options=RequestOptions(binary_outputs=True))
        request = self._reader.parse(body[:json_bytes])
        self._policy.unknown(_unknown_names(request))
        options = read_parameters(request.parameters)
        inputs = _inputs(request.inputs, BinaryTail(memoryview(body)[json_bytes:]))
        return ParsedInferRequest(inputs, request.id, options, _wanted(request, options))

    async def _infer(
        self, model: ModelAddress, parsed: ParsedInferRequest, context: RequestContext
    ) -> CoreResponse:
        inputs = priority.limited(parsed.inputs, self._core, model, context.tenant)
        stream = self._core.infer(
            model.name,
            cache_salt.salted(inputs, self._core, model, self._admission.cache_salts),
            version=model.version,
            request_id=parsed.id or context.request_id,
            priority=parsed.options.priority,
            timeout_us=parsed.options.timeout_us,
            parameters=parsed.options.custom,
            outputs=[output.name for output in parsed.outputs],
        )
        responses: list[CoreResponse] = []
        try:
            async for burst in stream:
                responses += burst
        finally:
            stream.cancel()
        if len(responses) != 1:
            raise InferenceFailed(f"expected a single response, got {len(responses)}")
        return responses[0]

    async def _written(
        self,
        model: ModelAddress,
        parsed: ParsedInferRequest,
        response: CoreResponse,
        head: Mapping[str, Any],
    ) -> InferResult:
        requested = {each.name: each for each in parsed.outputs}
        form = RequestedOutput("", binary=parsed.options.binary_outputs)
        described = [
            (read_output(response.tensor(name)), requested.get(name, form))
            for name in response.names
            if not requested or name in requested  # a backend may return more than was requested
        ]
        for each, how in described:
            if how.classes and self._labels(model, each.name):
                reject(each.name, "classification is not supported for outputs with a label file")
        batches = any(how.classes for _, how in described) and self._batches(model)
        write = partial(_result, head, response.parameters, described, batches=batches)
        return await offload(write, byte_size=sum(each.data.nbytes for each, _ in described))

    def _batches(self, model: ModelAddress) -> bool:
        config = self._core.model_config(model.name, model.version)
        return bool(config.get("max_batch_size", 0) > 0)

    def _labels(self, model: ModelAddress, name: str) -> bool:
        config = self._core.model_config(model.name, model.version)
        return any(
            each["name"] == name and each.get("label_filename") for each in config.get("output", ())
        )


def _inputs(tensors: Iterable[RequestInput], tail: BinaryTail) -> dict[str, TensorInput]:
    inputs: dict[str, TensorInput] = {}
    for tensor in tensors:
        if tensor.name in inputs:
            reject(tensor.name, "duplicate input")
        refuse_reserved(tensor.name)
        inputs[tensor.name] = _input(tensor, tail)
    tail.check_end()
    return inputs


def _input(tensor: RequestInput, tail: BinaryTail) -> TensorInput:
    datatype = datatype_named(tensor.name, tensor.datatype)
    parameters = tensor.parameters
    size = None if parameters is None else parameters.binary_data_size
    if parameters is not None:
        _refuse_shared_memory(tensor.name, parameters)
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
        _refuse_shared_memory(each.name, parameters)
        if each.name in requested:
            reject(each.name, "duplicate output")
        binary_data = parameters.binary_data
        requested[each.name] = RequestedOutput(
            each.name,
            binary=options.binary_outputs if binary_data is None else binary_data,
            classes=parameters.classification or 0,
        )
    return tuple(requested.values())


def _refuse_shared_memory(tensor: str, parameters: RequestFields) -> None:
    for name in parameters.model_extra or ():
        if name.startswith("shared_memory_"):
            reject(tensor, f"`{name}`: shared memory is not supported")


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


def _result(
    head: Mapping[str, Any],
    parameters: Mapping[str, Any],
    outputs: Iterable[tuple[OutputTensor, RequestedOutput]],
    *,
    batches: bool,
) -> InferResult:
    written = []
    for each, how in outputs:
        output = top_classes(each, how.classes, batches=batches) if how.classes else each
        written.append(encode_output(output, binary=how.binary))
    members = {**head, "parameters": dict(parameters)} if parameters else head
    texts = b",".join(text for text, _ in written)
    json = orjson.dumps(members)[:-1] + b',"outputs":[' + texts + b"]}"
    return InferResult(json, tuple(data for _, data in written if data is not None))
