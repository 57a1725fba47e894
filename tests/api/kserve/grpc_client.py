"""A gRPC server for an application of the tests, and a client of it, on real sockets."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from openai_frontend.cli import grpc_server
from openai_frontend.config.settings import Settings
from openai_frontend.kserve.grpc.messages import HEALTH, INFERENCE, message, methods

METHODS = {**methods(INFERENCE), **methods(HEALTH)}

# Of the client: without it, gRPC takes megabytes that the application does not read
WINDOW = [("grpc.http2.bdp_probe", 0)]

ModelInferRequest = message("ModelInferRequest")


@dataclass
class RpcClient:
    """Calls methods by name; members of the request are keywords."""

    channel: grpc.aio.Channel
    metadata: tuple[tuple[str, str], ...] = ()
    calls: list[Any] = field(default_factory=list)  # the last one is what `ask` sent

    async def ask(self, name: str, request: Any = None, /, **fields: Any) -> Any:
        """The response of a method that is not a stream."""
        method = METHODS[name]
        call = self.channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )(built(method.request, fields) if request is None else request, metadata=self.metadata)
        self.calls.append(call)
        return await call

    async def refusal(self, name: str, request: Any = None, /, **fields: Any) -> tuple[str, str]:
        """Code and details of a call that fails."""
        try:
            await self.ask(name, request, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} succeeded")

    def stream(self, requests: Iterable[Any]) -> Any:
        """A running ModelStreamInfer."""
        return self.stream_of(iter(requests))

    def stream_of(self, requests: Any) -> Any:
        """The same for an iterator, which may be asynchronous."""
        method = METHODS["ModelStreamInfer"]
        return self.channel.stream_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )(requests, metadata=self.metadata)


def built(kind: Any, fields: Mapping[str, Any]) -> Any:
    """A message; old versions of protobuf take no dicts for messages in maps."""
    maps = {name: value for name, value in fields.items() if isinstance(value, dict)}
    others = {name: value for name, value in fields.items() if name not in maps}
    return json_format.ParseDict(maps, kind(**others))


def request(model: str, inputs: Mapping[str, tuple[str, list[int], bytes]], **fields: Any) -> Any:
    """A ModelInferRequest with raw inputs: name -> datatype, shape, bytes."""
    made = ModelInferRequest(model_name=model, **fields)
    for name, (datatype, shape, data) in inputs.items():
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(data)
    return made


@contextlib.asynccontextmanager
async def rpc_server(app: Any, **settings: Any) -> AsyncIterator[str]:
    """The address of a gRPC server for the application."""
    options = {"grpc-port": "0", **settings.pop("triton_option", {})}
    server = grpc_server.build(Settings(triton_option=options, **settings), app)
    assert server is not None
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def rpc_client(app: Any, key: str = "", **settings: Any) -> AsyncIterator[RpcClient]:
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    async with (
        rpc_server(app, **settings) as address,
        grpc.aio.insecure_channel(address, WINDOW) as channel,
    ):
        yield RpcClient(channel, metadata)
