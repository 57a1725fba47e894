"""The gateway as an application of Ray Serve: `serve deploy gateway.yaml` (docs/ray.md).

A replica is a complete gateway: the application, Triton's core and the engines in one process. Ray
places, scales, updates and replaces replicas. Its HAProxy connects clients to a replica's own port,
where responses are written to the socket as `openai-frontend serve` writes them: no code of Ray's
runs for a token. With `prefill`, further replicas compute prompts, which HAProxy does not know.
"""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ray
import uvicorn.config
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from openai_frontend.app import Gateway
from openai_frontend.cli.command import check_settings, copy_buckets, replica_settings
from openai_frontend.cli.serve import build_app, connection_limits, listen, transfer_server
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.ray_application import (
    TRANSFER_KEY,
    arguments_of,
    check_environment,
    decode_settings,
    deployment_options,
    prefill_options,
    prefill_settings,
    settings_of,
)
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState
from openai_frontend.logs.configure import log_to_stderr
from openai_frontend.middleware.headers import response_headers
from openai_frontend.middleware.request_id import WithoutRequestId
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.runtime.background_tasks import supervise
from openai_frontend.server.http_protocol import limited_protocol

# Some names below are alpha or private, so a minor version is supported once it is tested.
SUPPORTED_RAY = "2.60"
# The gateway detects disconnects itself. Ray would run two more tasks per request to do so.
_WITHOUT_RAYS_RECEIVE = ("x-request-disconnect-disabled", "?1")
_POLL_S = 0.05
_FOLLOW_S, _FOLLOW_TIMEOUT_S = 2.0, 10.0
# Ports of the engines' side channels: between Ray's ports for workers (up to 19,999) and for
# replicas (from 30,000), and not a port that the system gives to a connection.
_SIDE_CHANNELS = range(21_000, 30_000)


def app(args: dict[str, Any]) -> serve.Application:
    """Ray's builder of the application. Raises InvalidSettings."""
    if not ray.__version__.startswith(f"{SUPPORTED_RAY}."):
        raise InvalidSettings(
            f"Ray {ray.__version__} is not supported: install 'ray[serve]=={SUPPORTED_RAY}.*'"
        )
    arguments = arguments_of(args)
    settings = settings_of(arguments, BY_NAME)
    check_settings(settings, repositories=arguments.model is None)
    check_environment(os.environ, arguments, settings)
    options = deployment_options(arguments, settings)
    replica = serve.deployment(Replica).options(name="gateway", **options)
    if arguments.prefill is None:
        return replica.bind(args)
    options = prefill_options(arguments, arguments.prefill, settings)
    return replica.bind(
        args, serve.deployment(PrefillReplica).options(name="prefill", **options).bind(args)
    )


class _Worker:
    """A gateway in one of Ray's worker processes."""

    def __init__(self, settings: Settings) -> None:
        with ThreadPoolExecutor(1) as thread:  # in this one an event loop may run
            thread.submit(copy_buckets, settings).result()
        log_to_stderr(
            settings.log_level, settings.log_format, exception_texts=settings.log_exception_texts
        )
        if settings.role != "both":
            _take_side_channel(ray.util.get_node_ip_address())
        self._gateway = build_app(settings)
        self._state: AppState = self._gateway.state.gateway
        router = self._gateway.router
        router.lifespan_context = self._until_loaded(router.lifespan_context)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._state.metrics.name_replica(self._name)

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises: an engine has used up its restarts."""
        if given_up := self._state.engine_supervisor.given_up:
            raise RuntimeError(f"the engines of these models stay down: {', '.join(given_up)}")

    def _until_loaded(self, lifespan: Any) -> Any:
        """Ends the start once the models have loaded: only then does Ray send requests."""

        @contextlib.asynccontextmanager
        async def loaded(gateway: Gateway) -> AsyncGenerator[None, None]:
            async with lifespan(gateway):
                startup, registry = self._state.startup, self._state.registry
                while startup.failure is None and not registry.has_loaded():  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)  # either may come from any of several tasks
                if startup.failure is not None:
                    raise startup.failure
                async with self._running():
                    yield

        return loaded

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None, None]:
        """Background tasks that run while the models are loaded."""
        yield


@serve.ingress()
class Replica(_Worker):
    """Answers clients. Ray calls the methods, on the event loop that also serves requests."""

    def __init__(self, args: dict[str, Any], prefill: DeploymentHandle | None = None) -> None:
        settings = replica_settings(arguments_of(args))
        if prefill is not None:
            settings = decode_settings(settings, os.environ[TRANSFER_KEY])
        super().__init__(settings)
        self._prefill = prefill
        # Ray's uvicorn looks it up when its server starts, which is after this.
        protocols: dict[str, Any] = uvicorn.config.HTTP_PROTOCOLS  # names or classes
        protocols["auto"] = limited_protocol(
            connection_limits(settings),
            self._state.metrics,
            root_path=settings.root_path,
            heartbeat=self._state.server.heartbeat,
            headers=response_headers(tls=False, replica_name=self._name),
            request_headers=[_WITHOUT_RAYS_RECEIVE],
        )

    def __serve_build_asgi_app__(self) -> WithoutRequestId:
        """The application, which Ray starts and stops."""
        return WithoutRequestId(self._gateway)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None, None]:
        if self._prefill is None:
            yield
            return
        follow = partial(self._follow, self._prefill)
        task = asyncio.create_task(supervise("follow prefill replicas", follow))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, prefill: DeploymentHandle) -> None:
        """Asks Ray for the prefill replicas, which come and go."""
        peers = self._state.prefill_peers
        while peers is not None:
            try:
                found = await prefill.broadcast("transfer_url").results_async(
                    timeout_s=_FOLLOW_TIMEOUT_S, return_exceptions=True
                )
            except DeploymentUnavailableError:  # none has started yet
                found = []
            peers.replace([each for each in found if isinstance(each, str)])
            await asyncio.sleep(_FOLLOW_S)


class PrefillReplica(_Worker):
    """Computes prompts for the other replicas, which ask it without Ray."""

    # Ray awaits it
    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]
        settings = replica_settings(arguments_of(args))
        settings = prefill_settings(settings, os.environ[TRANSFER_KEY])
        super().__init__(settings)
        host = ray.util.get_node_ip_address()
        listener = listen(host, 0)
        self._url = f"http://{host}:{listener.getsockname()[1]}"
        self._server = transfer_server(settings, self._state, listener)
        self._lifespan = self._gateway.router.lifespan_context(self._gateway)
        await self._lifespan.__aenter__()

    def transfer_url(self) -> str:
        """The URL at which decode replicas request prefills."""
        return self._url

    async def __del__(self) -> None:
        """Ray's hook for the end of a replica."""
        await self._lifespan.__aexit__(None, None, None)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None, None]:
        self._server.start(None)
        try:
            yield
        finally:
            self._state.drain_state.drain()
            await self._server.stop()


def _take_side_channel(host: str) -> None:
    """Give the engine of this process a port of its own for vLLM's NixlConnector."""
    while True:
        port = random.choice(_SIDE_CHANNELS)  # noqa: S311 - not a secret
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            break
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
