"""The gRPC server: its port, its TLS, its options, and its end."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from openai_frontend.kserve.grpc.connections import RpcConnections
from openai_frontend.kserve.grpc.messages import HEALTH, INFERENCE, POOL, methods
from openai_frontend.runtime.files import FileStamp, file_stamp

logger = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files; with `client_ca`, clients must present a certificate of one of its authorities."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """How the server listens. The channel arguments are gRPC's own."""

    host: str
    port: int
    max_message_bytes: int
    max_metadata_bytes: int
    max_calls: int  # further calls get RESOURCE_EXHAUSTED
    tls: TlsFiles | None = None
    reflection: bool = False
    channel_arguments: Sequence[tuple[str, Any]] = ()


class GrpcServer:
    """Serves from `start` to `stop`."""

    def __init__(
        self,
        options: GrpcOptions,
        inference: Handlers,
        health: Handlers,
        running: set[asyncio.Task[Any]],
        connections: RpcConnections,
    ) -> None:
        """`running` are the tasks of calls."""
        self.running = running
        self._connections = connections
        self._options = options
        self._services = [_service(INFERENCE, inference), _service(HEALTH, health)]
        self._server: Any = None

    @property
    def port(self) -> int:
        """0 until it listens."""
        return self._connections.port

    async def start(self) -> None:
        """Listen. Raises OSError if the port cannot be had."""
        server = self._server = self._new_server()  # gRPC takes the loop that runs now
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        address = f"{host}:{self._options.port}"
        try:
            if self._options.tls is None:
                self._connections.port = server.add_insecure_port(address)
            else:
                credentials = Certificates(self._options.tls).credentials()
                self._connections.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise OSError(f"gRPC cannot listen on {address}: the port is in use") from None
        await server.start()
        logger.info("gRPC listens: host=%s port=%d", self._options.host, self.port)

    def _new_server(self) -> Any:
        options = self._options
        server = grpc.aio.server(
            maximum_concurrent_rpcs=options.max_calls,
            options=[
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", options.max_metadata_bytes),
                ("grpc.absolute_max_metadata_size", options.max_metadata_bytes),
                *options.channel_arguments,
            ],
        )
        server.add_generic_rpc_handlers(self._services)
        if options.reflection:
            _add_reflection(server)
        return server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, and cancel those that still run after `grace_s` seconds."""
        if self._server is not None:
            await self._server.stop(grace_s)


def _service(name: str, handlers: Handlers) -> Any:
    """Streamed responses are serialized already."""
    table = {}
    for method, answer in handlers.items():
        known = methods(name)[method]
        # Handlers read even a single message themselves: gRPC would wait for it without a timeout
        if known.server_streams:
            make = grpc.stream_stream_rpc_method_handler
        else:
            make = grpc.stream_unary_rpc_method_handler
        serialize = None if known.server_streams else known.response.SerializeToString
        # Handlers parse requests themselves: invalid ones get an answer then
        table[method] = make(answer, None, serialize)
    return grpc.method_handlers_generic_handler(name, table)


def _add_reflection(server: Any) -> None:
    from grpc_reflection.v1alpha import reflection  # an option, and few servers have it on

    names = (INFERENCE, HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=POOL)


class Certificates:
    """The server's certificate, read again for a new connection after its files have changed."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps = self._read_stamps()

    def credentials(self) -> grpc.ServerCredentials:
        """Raises OSError if a file cannot be read."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._changed,
            require_client_authentication=self._files.client_ca is not None,
        )

    def _changed(self) -> Any:
        """Called for each new connection. None: the certificate in force is the current one."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            configuration = self._configuration()
        except OSError as error:
            logger.error("%s; the previous certificate of gRPC stays in force", error)
            return None
        logger.info("%s: gRPC's certificate reloaded", self._files.certificate)
        return configuration

    def _configuration(self) -> Any:
        chain = self._files.certificate.read_bytes()
        key = chain if self._files.key is None else self._files.key.read_bytes()
        authorities = self._files.client_ca
        return grpc.ssl_server_certificate_configuration(
            [(key, chain)], None if authorities is None else authorities.read_bytes()
        )

    def _read_stamps(self) -> list[FileStamp | None]:
        files = self._files
        return [
            file_stamp(path) for path in (files.certificate, files.key, files.client_ca) if path
        ]
