"""Runs requests of every protocol in the core: parsed tensors in, the core's responses out.

Knows neither HTTP nor gRPC, and no encoding of tensors.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from openai_frontend.errors import InferenceFailed, InvalidRequest, ModelUnavailable
from openai_frontend.infer_options import InferOptions, OutputRequest
from openai_frontend.kserve import cache_salt, priority
from openai_frontend.kserve.datatypes import TensorInput
from openai_frontend.kserve.models import (
    LATEST,
    Core,
    CoreResponse,
    CoreResponses,
    ModelAddress,
    ModelAdmission,
    offload,
)
from openai_frontend.kserve.outputs import (
    OutputTensor,
    RequestedOutput,
    placed_output,
    read_output,
    top_classes,
)
from openai_frontend.kserve.parameters import RequestOptions
from openai_frontend.kserve.sequences import Sequences
from openai_frontend.kserve.shared_memory import Attachment, SharedInput, SharedMemory
from openai_frontend.request_context.context import RequestContext


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request, ready for the core, and the form of each output."""

    inputs: dict[str, TensorInput]
    id: str | None = None
    options: RequestOptions = field(default_factory=RequestOptions)
    outputs: tuple[RequestedOutput, ...] = ()  # empty: all of the model's outputs
    shared_inputs: Mapping[str, SharedInput] = field(default_factory=dict)  # not in `inputs`


@dataclass(frozen=True, slots=True)
class TensorModel:
    """A model that is kept loaded, as the readers of its requests need it."""

    core: Core
    address: ModelAddress

    @property
    def is_decoupled(self) -> bool:
        """Whether a request may have any number of responses."""
        return self.core.model_is_decoupled(self.address.name, self.address.version)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.core.model_metadata(self.address.name, self.address.version)

    @property
    def config(self) -> dict[str, Any]:
        return self.core.model_config(self.address.name, self.address.version)

    @property
    def batches(self) -> bool:
        """Whether the first dimension of its tensors is the batch."""
        return bool(self.config.get("max_batch_size", 0) > 0)


# Parses a request once its model is loaded; called on a thread if the request is long
ReadRequest = Callable[[TensorModel], InferenceRequest]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """The model that answers."""

    name: str
    version: str


@dataclass(slots=True)  # freezing would cost each token 1 us
class Answer:
    """One response of a model, with the form of each output."""

    model: ModelVersion
    id: str | None
    outputs: Sequence[tuple[OutputTensor, RequestedOutput]]
    parameters: Mapping[str, Any]
    final: bool
    batches: bool = False  # the first dimension of an output that is classified is the batch

    @property
    def byte_size(self) -> int:
        """Bytes of all tensors."""
        return sum(output.data.nbytes for output, _ in self.outputs)

    def tensors(self) -> Iterator[tuple[OutputTensor, RequestedOutput]]:
        """The outputs to send: of one that is classified, its top classes. Call it in `offload`."""
        for output, form in self.outputs:
            if form.classes:
                yield top_classes(output, form.classes, batches=self.batches), form
            else:
                yield output, form

    @property
    def has_content(self) -> bool:
        """False for an empty final response, with which a decoupled model may end."""
        return bool(self.outputs or self.parameters or not self.final)


class RunningInference:
    """A request that runs in the core: iterate over bursts of answers."""

    def __init__(
        self,
        request: InferenceRequest,
        model: ModelVersion,
        responses: CoreResponses,
        *,
        batches: bool,
        attachment: Attachment,
    ) -> None:
        self.id = request.id
        self.model = model
        self._responses = responses
        self._batches = batches
        self._attachment = attachment
        self._requested = {output.name: output for output in request.outputs}
        self._default = RequestedOutput("", binary=request.options.binary_outputs)

    async def __aiter__(self) -> AsyncIterator[list[Answer]]:
        async for burst in self._responses:
            yield [self._answer(response) for response in burst]

    async def single(self) -> Answer:
        """The only answer. Raises InferenceFailed if there are others, or none."""
        answers: list[Answer] = []
        async for burst in self:
            answers += burst
        if len(answers) != 1:
            raise InferenceFailed(f"expected a single response, got {len(answers)}")
        return answers[0]

    def _answer(self, response: CoreResponse) -> Answer:
        requested = self._requested
        self._attachment.check()
        outputs = [
            self._output(response, name)
            for name in response.names
            if not requested or name in requested  # a backend may return more than was requested
        ]
        return Answer(
            self.model,
            self.id,
            outputs,
            response.parameters,
            response.final,
            self._batches,
        )

    def _output(self, response: CoreResponse, name: str) -> tuple[OutputTensor, RequestedOutput]:
        form = self._requested.get(name, self._default)
        tensor = response.tensor(name)
        if form.region is not None:
            return placed_output(tensor), form
        return read_output(tensor, partial(response.label, name)), form


class Inference:
    """Runs requests in the core, within the limits of their models."""

    def __init__(self, core: Core, admission: ModelAdmission, shared_memory: SharedMemory) -> None:
        self._core = core
        self._shared_memory = shared_memory
        self._admission = admission
        self._sequences = Sequences(core)

    @asynccontextmanager
    async def run(
        self, context: RequestContext, model: ModelAddress, read: ReadRequest, *, byte_size: int
    ) -> AsyncGenerator[RunningInference, None]:
        """Load the model if needed, parse the request, wait for a slot and start it.

        `byte_size` is the length of what `read` parses. Leaving the block cancels the request.
        """
        tensors = TensorModel(self._core, model)
        async with self._admission.use(context, model):
            request = await offload(lambda: read(tensors), byte_size=byte_size)
            # Before the inference: meanwhile the model may be unloaded, or another version loaded
            version = _version(tensors)
            batches, labelled = _classification(tensors, request.outputs)
            labels_from = dict.fromkeys(labelled, int(batches))  # behind the batch
            async with self._admission.slot(context, model, request.options) as options:
                attachment = await self._attach(request, context)
                inputs = {**request.inputs, **attachment.inputs}
                timed = replace(request, inputs=inputs, options=options)
                outputs = [
                    OutputRequest(
                        each.name, labels_from.get(each.name), attachment.outputs.get(each.name)
                    )
                    for each in request.outputs
                ]
                responses = self._infer(timed, model, context, outputs)
                try:
                    yield RunningInference(
                        timed, version, responses, batches=batches, attachment=attachment
                    )
                finally:
                    responses.cancel()

    async def _attach(self, request: InferenceRequest, context: RequestContext) -> Attachment:
        """The request's tensors in shared memory."""
        shared = request.shared_inputs
        outputs = {each.name: each.region for each in request.outputs if each.region is not None}
        attach = partial(self._shared_memory.attach, shared, outputs, context.tenant)
        return await offload(attach, byte_size=sum(each.copied_bytes for each in shared.values()))

    def _infer(
        self,
        request: InferenceRequest,
        model: ModelAddress,
        context: RequestContext,
        outputs: Sequence[OutputRequest],
    ) -> CoreResponses:
        options = request.options
        self._sequences.check(model, options.sequence, context.tenant)
        inputs = priority.limited(request.inputs, self._core, model, context.tenant)
        return self._core.infer(
            model.name,
            cache_salt.salted(inputs, self._core, model, self._admission.cache_salts),
            version=model.version,
            request_id=request.id or context.request_id,
            options=InferOptions(
                priority=options.priority,
                timeout_us=options.timeout_us,
                parameters={**options.custom, **(context.forwarded_headers or {})},
                sequence=options.sequence,
                outputs=outputs,
            ),
        )


def _version(model: TensorModel) -> ModelVersion:
    version = model.address.version
    if version == LATEST:
        versions = model.core.model_metadata(model.address.name)["versions"]
        version = max(map(int, versions), default=LATEST)
    if version == LATEST:
        raise ModelUnavailable(f"model '{model.address.name}' has no ready version")
    return ModelVersion(model.address.name, str(version))


def _classification(
    model: TensorModel, outputs: Sequence[RequestedOutput]
) -> tuple[bool, Sequence[str]]:
    """Whether classes are counted by batch entry, and the outputs that may have labels."""
    classified = [output.name for output in outputs if output.classes]
    if not classified:
        return False, ()
    config = model.config
    if "ensemble_scheduling" in config:  # its outputs have the labels of its steps
        return model.batches, classified
    declared = {each["name"] for each in config.get("output", ()) if each.get("label_filename")}
    return model.batches, [name for name in classified if name in declared]


def response_head(answer: RunningInference | Answer) -> dict[str, Any]:
    """The members of a JSON response that identify its request and its model."""
    members = {"model_name": answer.model.name, "model_version": answer.model.version}
    return members if answer.id is None else {"id": answer.id, **members}


def refuse_decoupled(model: TensorModel, message: str) -> None:
    """Raises InvalidRequest with `message` if the model may send any number of responses."""
    if model.is_decoupled:
        raise InvalidRequest(message, param="model")
