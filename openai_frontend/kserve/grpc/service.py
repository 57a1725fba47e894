"""The methods of inference.GRPCInferenceService: messages in and out of KServe's services."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from google.protobuf import json_format

from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.auth.restrictions import Restriction
from openai_frontend.errors import InvalidRequest, NotSupported
from openai_frontend.kserve.grpc.calls import RpcCalls, StreamCall, parsed
from openai_frontend.kserve.grpc.messages import HEALTH, INFERENCE, methods
from openai_frontend.kserve.grpc.stream import InferStream, Started
from openai_frontend.kserve.grpc.stream_encoder import StreamEncoder
from openai_frontend.kserve.grpc.tensors import (
    RequestReader,
    parameters_of,
    sends_empty_final,
    write_answer,
)
from openai_frontend.kserve.inference import InferenceRequest, TensorModel, refuse_decoupled
from openai_frontend.kserve.models import (
    ModelAddress,
    check_visible,
    describe_server,
    inference_model,
    model_address,
    offload,
    visible_entries,
    visible_statistics,
)
from openai_frontend.kserve.services import KServeServices
from openai_frontend.kserve.shared_memory import NO_CUDA
from openai_frontend.request_context.context import RequestContext
from schemas.kserve import MAX_ID_CHARACTERS

DECOUPLED = (
    "ModelInfer does not support models with decoupled transaction policy: use ModelStreamInfer"
)

_STREAM = methods(INFERENCE)["ModelStreamInfer"]
_StreamResponse = _STREAM.response

# The scope that a key needs for each method, as for the HTTP route of the same purpose
SCOPES: Mapping[str, RouteScope] = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "models",
    "ServerMetadata": "models",
    "ModelMetadata": "models",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "models",
    "ModelStatistics": "metrics",
    "RepositoryIndex": "models",
    "RepositoryModelLoad": "admin",
    "RepositoryModelUnload": "admin",
    "SystemSharedMemoryStatus": "admin",
    "SystemSharedMemoryRegister": "admin",
    "SystemSharedMemoryUnregister": "admin",
    "CudaSharedMemoryStatus": "admin",
    "CudaSharedMemoryRegister": "admin",
    "CudaSharedMemoryUnregister": "admin",
    "TraceSetting": "admin",
    "LogSettings": "admin",
}

# tritonserver's groups, which `--grpc-restricted-protocol` names
GROUPS: Mapping[str, str] = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}


def restricted_methods(by_group: Mapping[str, Restriction]) -> Mapping[str, Restriction]:
    """By the paths of the methods, including those of grpc.health.v1.Health."""
    groups = {method.path: GROUPS[name] for name, method in methods(INFERENCE).items()}
    groups |= {method.path: "health" for method in methods(HEALTH).values()}
    return {path: by_group[group] for path, group in groups.items() if group in by_group}


_REPOSITORY = "'repository_name' specification is not supported"  # Triton's words


class InferenceService:
    """Answers the calls. Each method has the name of its call and gets message and context."""

    def __init__(self, services: KServeServices, calls: RpcCalls, stream_bytes: int) -> None:
        """`stream_bytes`: most bytes of a stream that wait for a slow client."""
        self._services = services
        self._core = services.core
        self._calls = calls
        self._reader = RequestReader(services.policy)
        self._stream_bytes = stream_bytes
        self._messages = {name: each.response for name, each in methods(INFERENCE).items()}

    def handlers(self) -> Mapping[str, Callable[..., Any]]:
        """The handler of each method, by name."""
        handlers = {}
        for name, method in methods(INFERENCE).items():
            wrap = self._calls.streaming if method.server_streams else self._calls.unary
            handlers[name] = wrap(method, SCOPES[name], getattr(self, name))
        return handlers

    def _response(self, name: str, fields: Mapping[str, Any]) -> Any:
        """The response of a method from a document of the core: its members are the fields."""
        response = self._messages[name]()
        return json_format.ParseDict(fields, response, ignore_unknown_fields=True)

    async def ServerLive(self, _request: Any, _context: RequestContext) -> Any:
        return self._messages["ServerLive"](live=self._core.is_live())

    async def ServerReady(self, _request: Any, _context: RequestContext) -> Any:
        return self._messages["ServerReady"](ready=self._services.is_ready())

    async def ModelReady(self, request: Any, context: RequestContext) -> Any:
        model = _visible(request, context)
        ready = self._core.model_is_ready(model.name, model.version)
        return self._messages["ModelReady"](ready=ready)

    async def ServerMetadata(self, _request: Any, _context: RequestContext) -> Any:
        return self._response(
            "ServerMetadata", describe_server(self._core, *self._services.extensions)
        )

    async def ModelMetadata(self, request: Any, context: RequestContext) -> Any:
        model = _visible(request, context)
        return self._response("ModelMetadata", self._core.model_metadata(model.name, model.version))

    async def ModelConfig(self, request: Any, context: RequestContext) -> Any:
        model = _visible(request, context)
        config = self._core.model_config(model.name, model.version)
        return self._response("ModelConfig", {"config": config})

    async def ModelStatistics(self, request: Any, context: RequestContext) -> Any:
        if not request.name:
            return self._response(
                "ModelStatistics", visible_statistics(context.principal, self._core)
            )
        model = _visible(request, context)
        statistics = self._core.model_statistics(model.name, model.version)
        return self._response("ModelStatistics", statistics)

    async def RepositoryIndex(self, request: Any, context: RequestContext) -> Any:
        _refuse_repository(request)
        index = await self._services.repository.index(ready_only=request.ready)
        models = visible_entries(context.principal, index)
        return self._response("RepositoryIndex", {"models": models})

    async def RepositoryModelLoad(self, request: Any, context: RequestContext) -> Any:
        _refuse_repository(request)
        model = check_visible(context.principal, model_address(request.model_name))
        parameters = parameters_of(request.parameters)
        for name, value in parameters.items():
            if not isinstance(value, str | bytes):
                message = f"parameter '{name[:128]}': must be a string or bytes"
                raise InvalidRequest(message, param=name[:128])
        await self._services.repository.load(model, parameters)
        return self._messages["RepositoryModelLoad"]()

    async def RepositoryModelUnload(self, request: Any, context: RequestContext) -> Any:
        _refuse_repository(request)
        model = check_visible(context.principal, model_address(request.model_name))
        parameters = parameters_of(request.parameters)
        dependents = parameters.pop("unload_dependents", False)
        if parameters or not isinstance(dependents, bool):
            message = "parameters: only the boolean `unload_dependents` is known"
            raise InvalidRequest(message, param="parameters")
        await self._services.repository.unload(model, dependents=dependents)
        return self._messages["RepositoryModelUnload"]()

    async def SystemSharedMemoryStatus(self, request: Any, _context: RequestContext) -> Any:
        regions = self._services.shared_memory.status(request.name)
        by_name = {region["name"]: region for region in regions}
        return self._response("SystemSharedMemoryStatus", {"regions": by_name})

    async def SystemSharedMemoryRegister(self, request: Any, context: RequestContext) -> Any:
        self._services.shared_memory.register(
            request.name, request.key, request.offset, request.byte_size, context.tenant
        )
        return self._messages["SystemSharedMemoryRegister"]()

    async def SystemSharedMemoryUnregister(self, request: Any, _context: RequestContext) -> Any:
        self._services.shared_memory.unregister(request.name)
        return self._messages["SystemSharedMemoryUnregister"]()

    async def _no_cuda_shared_memory(self, _request: Any, _context: RequestContext) -> Any:
        raise NotSupported(NO_CUDA)

    CudaSharedMemoryStatus = CudaSharedMemoryRegister = _no_cuda_shared_memory
    CudaSharedMemoryUnregister = _no_cuda_shared_memory

    async def TraceSetting(self, request: Any, context: RequestContext) -> Any:
        settings = self._services.trace_settings
        if request.model_name:
            model = check_visible(context.principal, model_address(request.model_name))
            settings = settings.of_model(self._core, model)
        settings.update({name: list(each.value) or None for name, each in request.settings.items()})
        response = self._messages["TraceSetting"]()
        for name, value in settings.get().items():
            values = [value] if isinstance(value, str) else value
            response.settings[name].value.extend(values)
        return response

    async def LogSettings(self, request: Any, _context: RequestContext) -> Any:
        log = self._services.log_settings
        log.update({name: _chosen(value) for name, value in request.settings.items()})
        response = self._messages["LogSettings"]()
        for name, value in log.get().items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return response

    async def ModelInfer(self, request: Any, context: RequestContext) -> Any:
        model = _for_inference(request, context, self._services)
        parameters = parameters_of(request.parameters)
        sends_empty_final(parameters)  # perf_analyzer sends it here too; it has no effect
        read = partial(self._read, request, parameters, DECOUPLED)
        inference, byte_size = self._services.inference, request.ByteSize()
        async with inference.run(context, model, read, byte_size=byte_size) as running:
            answer = await running.single()
        response = self._messages["ModelInfer"]()
        await offload(partial(write_answer, answer, response), byte_size=answer.byte_size)
        return response

    def _read(
        self,
        request: Any,
        parameters: Mapping[str, Any],
        decoupled: str | None,
        model: TensorModel,
    ) -> InferenceRequest:
        if decoupled is not None:
            refuse_decoupled(model, decoupled)
        return self._reader.read(request, parameters)

    def ModelStreamInfer(
        self, requests: AsyncIterator[bytes], call: StreamCall
    ) -> AsyncGenerator[bytes, None]:
        answer, in_time = partial(self._stream_answer, call.admit), self._calls.in_time
        stream = InferStream(call.context, answer, _failure, in_time, self._stream_bytes)
        return stream.responses(requests)

    async def _stream_answer(
        self,
        admit: Callable[[RequestContext], None],
        data: bytes,
        context: RequestContext,
        started: Started,
    ) -> AsyncGenerator[bytes, None]:
        """The serialized responses of one request of a stream."""
        admit(context)
        if context.principal is not None:
            await context.begin_limited(context.principal.rate_limiter)
        byte_size = len(data)
        self._calls.hold(byte_size, context)
        request = parsed(_STREAM, data)
        model = _for_inference(request, context, self._services)
        parameters = parameters_of(request.parameters)
        sends_empty = sends_empty_final(parameters)
        read = partial(self._read, request, parameters, None)
        inference, encode = self._services.inference, StreamEncoder().encode
        async with inference.run(context, model, read, byte_size=byte_size) as running:
            started()
            async for burst in running:
                for answer in burst:
                    if answer.has_content or sends_empty:
                        yield await offload(partial(encode, answer), byte_size=answer.byte_size)


def _failure(data: bytes, error_message: str) -> bytes:
    """The response names its request, as those without an error do."""
    response = _StreamResponse(error_message=error_message)
    with suppress(InvalidRequest):
        response.infer_response.id = parsed(_STREAM, data).id[:MAX_ID_CHARACTERS]
    serialized: bytes = response.SerializeToString()
    return serialized


def _chosen(setting: Any) -> Any:
    """The value of a setting; None if it has none."""
    kind = setting.WhichOneof("parameter_choice")
    return None if kind is None else getattr(setting, kind)


def _visible(request: Any, context: RequestContext) -> ModelAddress:
    """The model to describe."""
    return check_visible(context.principal, model_address(request.name, request.version or None))


def _for_inference(request: Any, context: RequestContext, services: KServeServices) -> ModelAddress:
    version = request.model_version or None
    return inference_model(context, services.core, request.model_name, version)


def _refuse_repository(request: Any) -> None:
    if request.repository_name:
        raise NotSupported(_REPOSITORY)
