"""The messages and methods of the gRPC services, from their compiled definitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

# A pool of its own: Triton's clients in the same process register other versions of the same files.
POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    Path(__file__).with_name("service.binpb").read_bytes()
).file:
    POOL.Add(_file)


def message(name: str) -> Any:
    """The class of a message of the inference service."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"inference.{name}"))


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service."""

    path: str  # /SERVICE/METHOD
    request: Any  # class of its message
    response: Any
    client_streams: bool
    server_streams: bool


def methods(service: str) -> Mapping[str, Method]:
    """The methods of a service by name."""
    descriptor = POOL.FindServiceByName(service)
    return {
        method.name: Method(
            f"/{service}/{method.name}",
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in descriptor.methods
    }
