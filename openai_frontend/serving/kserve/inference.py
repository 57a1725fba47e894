"""POST infer: a request's tensors in, the model's tensors out, in the client's choice of forms."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from openai_frontend.contracts.kserve import binary, json_tensor, output
from openai_frontend.contracts.kserve.datatypes import TensorInput, check_size, known, refuse
from openai_frontend.contracts.kserve.raw import raw_input
from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.serving.kserve import work
from openai_frontend.serving.kserve.addresses import LATEST, ModelAddress
from openai_frontend.serving.kserve.at_work import AtWork
from openai_frontend.serving.kserve.core import Core, Response
from openai_frontend.serving.kserve.options import RequestOptions, read_options
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import InferRequest, OutputParameters, RequestInput
from schemas.sampling import RequestFields

DECOUPLED = (
    "infer does not support models with decoupled transaction policy: use generate or "
    "generate_stream"
)


@dataclass(frozen=True, slots=True)
class Inference:
    """A request as it goes to the core, and how its outputs are wanted."""

    inputs: dict[str, TensorInput]
    id: str | None = None
    options: RequestOptions = field(default_factory=RequestOptions)
    wanted: tuple[output.Wanted, ...] = ()  # empty: all that the model gives


@dataclass(frozen=True, slots=True)
class Answer:
    """The JSON of a response, and the tensors' bytes that follow it."""

    json: bytes
    tail: tuple[memoryview, ...] = ()


class InferRequests:
    """Answers inference requests."""

    def __init__(self, core: Core, at_work: AtWork, policy: FieldPolicy) -> None:
        self._core = core
        self._at_work = at_work
        self._policy = policy
        self._reader = BodyReader(InferRequest)

    async def create(
        self,
        model: ModelAddress,
        body: bytes,
        header_length: str | None,
        request_id: str,
        *,
        key: str = "",
    ) -> Answer:
        """`header_length`: the header that says where the JSON ends, if it came. `key`: the digest
        of who asks.
        """
        json_bytes = binary.header_length(header_length, len(body))
        async with self._at_work.on(model, key):
            if self._core.model_is_decoupled(model.name, model.version):
                raise InvalidRequest(DECOUPLED, param="model")
            read = partial(self._read, model, body, json_bytes)
            inference = await work.done(read, byte_size=len(body))
            async with self._at_work.place(model, key, inference.options) as options:
                told = replace(inference, options=options)
                response = await self._only(model, told, request_id)
            return await self._written(model, inference, response)

    def _read(self, model: ModelAddress, body: bytes, json_bytes: int) -> Inference:
        if json_bytes == 0 and body:
            metadata = self._core.model_metadata(model.name, model.version)
            inputs = raw_input(metadata["inputs"], memoryview(body), batches=self._batches(model))
            return Inference(inputs, options=RequestOptions(binary_outputs=True))
        request = self._reader.read_in_thread(body[:json_bytes])
        self._policy.unknown(_unknown_names(request))
        options = read_options(request.parameters)
        inputs = _inputs(request.inputs, binary.Tail(memoryview(body)[json_bytes:]))
        return Inference(inputs, request.id, options, _wanted(request, options))

    async def _only(self, model: ModelAddress, inference: Inference, request_id: str) -> Response:
        stream = self._core.infer(
            model.name,
            inference.inputs,
            version=model.version,
            request_id=inference.id or request_id,
            priority=inference.options.priority,
            timeout_us=inference.options.timeout_us,
            parameters=inference.options.custom,
            outputs=[wanted.name for wanted in inference.wanted],
        )
        responses: list[Response] = []
        try:
            async for burst in stream:
                responses += burst
        finally:
            stream.cancel()
        if len(responses) != 1:
            raise InferenceFailed(f"expected a single response, got {len(responses)}")
        return responses[0]

    async def _written(
        self, model: ModelAddress, inference: Inference, response: Response
    ) -> Answer:
        head = response_head(self._core, model, inference.id)
        wanted = {each.name: each for each in inference.wanted}
        form = output.Wanted("", binary=inference.options.binary_outputs)
        described = [
            (output.read(response.tensor(name)), wanted.get(name, form))
            for name in response.names
            if not wanted or name in wanted  # a backend may give more than was asked for
        ]
        for each, how in described:
            if how.classes and self._labels(model, each.name):
                refuse(each.name, "its classes have labels, which this server does not tell")
        batches = any(how.classes for _, how in described) and self._batches(model)
        write = partial(_answer, head, response.parameters, described, batches=batches)
        return await work.done(write, byte_size=sum(each.data.nbytes for each, _ in described))

    def _batches(self, model: ModelAddress) -> bool:
        config = self._core.model_config(model.name, model.version)
        return bool(config.get("max_batch_size", 0) > 0)

    def _labels(self, model: ModelAddress, name: str) -> bool:
        config = self._core.model_config(model.name, model.version)
        return any(
            each["name"] == name and each.get("label_filename") for each in config.get("output", ())
        )


def response_head(core: Core, model: ModelAddress, id: str | None) -> dict[str, Any]:
    """Which request and which model a response is of."""
    version = model.version
    if version == LATEST:
        version = max(map(int, core.model_metadata(model.name)["versions"]), default=LATEST)
    if version == LATEST:
        raise ModelUnavailable(f"the model '{model.name}' has no version that is ready")
    told = {"model_name": model.name, "model_version": str(version)}
    return told if id is None else {"id": id, **told}


def _inputs(tensors: Iterable[RequestInput], tail: binary.Tail) -> dict[str, TensorInput]:
    inputs: dict[str, TensorInput] = {}
    for tensor in tensors:
        if tensor.name in inputs:
            refuse(tensor.name, "it is given twice")
        inputs[tensor.name] = _input(tensor, tail)
    tail.check_end()
    return inputs


def _input(tensor: RequestInput, tail: binary.Tail) -> TensorInput:
    datatype = known(tensor.name, tensor.datatype)
    parameters = tensor.parameters
    size = None if parameters is None else parameters.binary_data_size
    if parameters is not None:
        _refuse_shared_memory(tensor.name, parameters)
    if (size is None) == (tensor.data is None):
        refuse(tensor.name, "it has either `data` or the parameter `binary_data_size`")
    if size is None:
        data: bytes | memoryview = json_tensor.decode(
            tensor.name, datatype, tensor.shape, tensor.data
        )
    else:
        check_size(tensor.name, datatype, tensor.shape, size)
        data = tail.take(tensor.name, size)
        binary.check_elements(tensor.name, datatype, tensor.shape, data)
    return datatype.name, tuple(tensor.shape), data


def _wanted(request: InferRequest, options: RequestOptions) -> tuple[output.Wanted, ...]:
    wanted: dict[str, output.Wanted] = {}
    for each in request.outputs or ():
        parameters = each.parameters or OutputParameters()
        _refuse_shared_memory(each.name, parameters)
        if each.name in wanted:
            refuse(each.name, "it is asked for twice")
        binary_data = parameters.binary_data
        wanted[each.name] = output.Wanted(
            each.name,
            binary=options.binary_outputs if binary_data is None else binary_data,
            classes=parameters.classification or 0,
        )
    return tuple(wanted.values())


def _refuse_shared_memory(tensor: str, parameters: RequestFields) -> None:
    for name in parameters.model_extra or ():
        if name.startswith("shared_memory_"):
            refuse(tensor, f"`{name}`: this server takes no tensors in shared memory")


def _unknown_names(request: InferRequest) -> Iterable[str]:
    """The request and the model's name may stand in the request, as in Triton's documentation."""
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


def _answer(
    head: Mapping[str, Any],
    parameters: Mapping[str, Any],
    outputs: Iterable[tuple[output.Output, output.Wanted]],
    *,
    batches: bool,
) -> Answer:
    written = []
    for each, how in outputs:
        told = output.best(each, how.classes, batches=batches) if how.classes else each
        written.append(output.described(told, binary=how.binary))
    members = {**head, "parameters": dict(parameters)} if parameters else head
    texts = b",".join(text for text, _ in written)
    json = orjson.dumps(members)[:-1] + b',"outputs":[' + texts + b"]}"
    return Answer(json, tuple(data for _, data in written if data is not None))
