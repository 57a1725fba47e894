"""POST generate and generate_stream: a model's inputs and outputs as members of a JSON object."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from openai_frontend import sse
from openai_frontend.errors import InvalidRequest
from openai_frontend.kserve import json_tensors
from openai_frontend.kserve.datatypes import TensorInput, datatype_named, refuse_reserved, reject
from openai_frontend.kserve.inference import (
    Answer,
    Inference,
    InferenceRequest,
    TensorModel,
    response_head,
)
from openai_frontend.kserve.models import ModelAddress, offload
from openai_frontend.kserve.outputs import OutputTensor
from openai_frontend.kserve.parameters import read_parameters
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import GenerateRequest

_NESTED = "parameters"  # its members may also be members of the request itself

NOT_ONE = "generate needs exactly one response from the model, which sent {}: use generate_stream"


class GenerateService:
    """Answers generate and generate_stream requests."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._reader = BodyReader(GenerateRequest)

    async def create(self, model: ModelAddress, body: bytes, context: RequestContext) -> bytes:
        """The single response, as JSON."""
        documents: list[bytes] = []
        async with aclosing(self._documents(model, body, context)) as bursts:
            async for burst in bursts:
                documents += burst
                if len(documents) > 1:  # no reason to generate the rest
                    raise InvalidRequest(NOT_ONE.format("more than one"))
        if not documents:
            raise InvalidRequest(NOT_ONE.format("none"))
        return documents[0]

    async def stream(
        self, model: ModelAddress, body: bytes, context: RequestContext
    ) -> AsyncGenerator[bytes, None]:
        """Events; those of one wake-up together. Raises errors after the events before them."""
        async with aclosing(self._documents(model, body, context)) as bursts:
            async for burst in bursts:
                if burst:
                    yield b"".join(map(sse.event, burst))

    async def _documents(
        self, model: ModelAddress, body: bytes, context: RequestContext
    ) -> AsyncGenerator[list[bytes], None]:
        """Closing this generator cancels the request in the core."""
        read = partial(self._read, body=body)
        async with self._inference.run(context, model, read, byte_size=len(body)) as running:
            encoder = ResponseEncoder(response_head(running))
            async for burst in running:
                yield [await _encode(encoder, each) for each in burst if each.has_content]
            encoder.finish()

    def _read(self, model: TensorModel, body: bytes) -> InferenceRequest:
        request = self._reader.parse(body)
        fields = dict(request.model_extra or {})
        if request.parameters is not None:
            fields[_NESTED] = request.parameters
        split = read_fields(fields, model.metadata["inputs"])
        return InferenceRequest(split.inputs, request.id, read_parameters(split.parameters))


async def _encode(encoder: "ResponseEncoder", answer: Answer) -> bytes:
    outputs = [output for output, _ in answer.outputs]
    write = partial(encoder.encode, outputs, answer.parameters)
    return await offload(write, byte_size=answer.byte_size)


@dataclass(frozen=True, slots=True)
class GenerateFields:
    """A request's fields, split into the model's inputs and other parameters."""

    inputs: dict[str, TensorInput] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)


def read_fields(
    request: Mapping[str, Any], declared: Iterable[Mapping[str, Any]]
) -> GenerateFields:
    """`declared` are the inputs in the model's metadata. Raises InvalidRequest with the field."""
    metadata = {tensor["name"]: tensor for tensor in declared}
    fields = GenerateFields()
    for name, value in _flat(request, _NESTED in metadata):
        if name in fields.inputs or name in fields.parameters:
            raise InvalidRequest(f"duplicate field '{name[:128]}'", param=name[:128])
        if name in metadata:
            fields.inputs[name] = _input(metadata[name], value)
        else:
            fields.parameters[name] = value
    return fields


def _flat(request: Mapping[str, Any], is_input: bool) -> Iterable[tuple[str, Any]]:
    for name, value in request.items():
        if name != _NESTED or is_input:
            yield name, value
        elif isinstance(value, dict):
            yield from value.items()
        else:
            raise InvalidRequest(f"'{_NESTED}' must be an object", param=_NESTED)


def _input(declared: Mapping[str, Any], value: Any) -> TensorInput:
    name = declared["name"]
    refuse_reserved(name)
    datatype = datatype_named(name, declared["datatype"])
    values = value if isinstance(value, list) else [value]
    shape = _shape(name, declared["shape"], len(values))
    return datatype.name, shape, json_tensors.decode(name, datatype, shape, values)


def _shape(tensor: str, declared: Sequence[int], count: int) -> tuple[int, ...]:
    """The declared shape; the innermost free dimension takes all elements, others become 1."""
    shape = [int(dimension) for dimension in declared]
    remaining = count
    for fixed in shape:
        if fixed > 0:
            if remaining % fixed:
                reject(tensor, f"{count} elements do not fit its shape {shape}")
            remaining //= fixed
    for place in reversed(range(len(shape))):
        if shape[place] < 0:
            shape[place], remaining = remaining, 1
    if remaining != 1:
        reject(tensor, f"{count} elements do not fit its shape {list(declared)}")
    return tuple(shape)


class ResponseEncoder:
    """Encodes the responses of one answer, which begin with the members of `head`."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = head
        self._texts: dict[str, json_tensors.TextDecoder] = {}

    def encode(self, outputs: Iterable[OutputTensor], parameters: Mapping[str, Any]) -> bytes:
        """Parameters and outputs as members. One element is written as a scalar."""
        members = {
            name: orjson.dumps(value) for name, value in {**self._head, **parameters}.items()
        }
        for output in outputs:
            text = self._encode_output(output)
            members[output.name] = text[1:-1] if output.count == 1 else text
        pairs = [orjson.dumps(name) + b":" + text for name, text in members.items()]
        return b"{" + b",".join(pairs) + b"}"

    def _encode_output(self, output: OutputTensor) -> bytes:
        name, datatype = output.name, datatype_named(output.name, output.datatype)
        decoder = self._texts.get(name)
        if decoder is None:
            decoder = self._texts[name] = json_tensors.TextDecoder(name)
        return json_tensors.encode(name, datatype, output.shape, output.data, decoder.decode)

    def finish(self) -> None:
        """Raise InvalidRequest if a text ends within a character."""
        for decoder in self._texts.values():
            decoder.finish()
