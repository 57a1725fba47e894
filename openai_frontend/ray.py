"""The gateway as an application of Ray Serve: `serve deploy gateway.yaml` (docs/ray.md).

A replica is a complete gateway: the application, Triton's core and the engines in one process. Ray
places, scales, updates and replaces replicas. Its HAProxy connects clients to a replica's own port,
where responses are written to the socket as `openai-frontend serve` writes them: no code of Ray's
runs for a token.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any

import ray
import uvicorn.config
from ray import serve

from openai_frontend.app import Gateway
from openai_frontend.cli.command import check_settings, replica_settings
from openai_frontend.cli.serve import build_app, connection_limits
from openai_frontend.config.loader import InvalidSettings
from openai_frontend.config.ray_application import (
    arguments_of,
    check_environment,
    deployment_options,
    settings_of,
)
from openai_frontend.lifespan import AppState
from openai_frontend.logs.configure import log_to_stderr
from openai_frontend.middleware.headers import response_headers
from openai_frontend.middleware.request_id import WithoutRequestId
from openai_frontend.parsing.registry import BY_NAME
from openai_frontend.server.http_protocol import limited_protocol

# Some names below are alpha or private, so a minor version is supported once it is tested.
SUPPORTED_RAY = "2.60"
_POLL_S = 0.05


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
    return serve.deployment(Replica).options(name="gateway", **options).bind(args)


@serve.ingress()
class Replica:
    """One gateway. Ray calls the methods, on the event loop that also serves requests."""

    def __init__(self, args: dict[str, Any]) -> None:
        settings = replica_settings(arguments_of(args))
        log_to_stderr(
            settings.log_level, settings.log_format, exception_texts=settings.log_exception_texts
        )
        self._gateway = build_app(settings)
        self._state: AppState = self._gateway.state.gateway
        router = self._gateway.router
        router.lifespan_context = self._until_loaded(router.lifespan_context)
        # Ray's uvicorn looks it up when its server starts, which is after this.
        name = serve.get_replica_context().replica_id.unique_id
        self._state.metrics.name_replica(name)
        protocols: dict[str, Any] = uvicorn.config.HTTP_PROTOCOLS  # names or classes
        protocols["auto"] = limited_protocol(
            connection_limits(settings),
            self._state.metrics,
            root_path=settings.root_path,
            headers=response_headers(tls=False, replica_name=name),
        )

    def __serve_build_asgi_app__(self) -> WithoutRequestId:
        """The application, which Ray starts and stops."""
        return WithoutRequestId(self._gateway)

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
                yield

        return loaded
