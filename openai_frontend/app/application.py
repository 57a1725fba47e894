"""Builds the ASGI application from settings and a Triton server."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import fastapi
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from openai_frontend import __version__
from openai_frontend.app.metrics import families
from openai_frontend.app.middleware import gateway_middleware, transfer_middleware
from openai_frontend.app.routes import add_routes, include
from openai_frontend.config.settings import Settings
from openai_frontend.lifespan import AppState, build_state
from openai_frontend.middleware.drain import DrainState
from openai_frontend.middleware.error_responses import handle_http_exception
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.routers.operations import metrics_router
from openai_frontend.routers.routing import RouteTable, all_routes
from openai_frontend.routers.transfer import transfer_router
from openai_frontend.runtime import compatibility
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.constraints import plugin
from openai_frontend.serving.prefill import Prefill
from openai_frontend.triton import Server

logger = logging.getLogger(__name__)


class Gateway(FastAPI):
    """FastAPI without the middleware that it puts around ours: `ErrorResponses` and `BodyLimit`
    replace it.
    """

    # FastAPI's sets its `root_path`, which this application does not use
    __call__ = Starlette.__call__

    def build_middleware_stack(self) -> ASGIApp:
        whole = super().build_middleware_stack()
        stack: Any = whole
        outermost: Any = self.user_middleware[0].cls
        while type(stack) is not outermost:
            stack = getattr(stack, "app", None)
            if stack is None:
                logger.warning(
                    "FastAPI %s: its middleware cannot be left out, so every request and event"
                    " needs more CPU; supported: %s",
                    fastapi.__version__,
                    compatibility.supported("fastapi"),
                )
                return whole
        return cast(ASGIApp, stack)


_ABOUT: Mapping[str, Any] = {
    "title": "openai-frontend",
    "version": __version__,
    "description": (
        "An OpenAI-compatible gateway with Triton Inference Server in its process.\n\n"
        "Set the `base_url` of an OpenAI client to the address of this server with `/v1`. "
        "If the server has API keys, send one as `Authorization: Bearer KEY`.\n\n"
        "Errors have OpenAI's form (KServe's form below `/v2`), and every response has an "
        "`x-request-id`."
    ),
    "license_info": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
    "openapi_url": None,  # replaced by ours; FastAPI's pages load scripts from a CDN
    "docs_url": None,
    "redoc_url": None,
    "separate_input_output_schemas": False,  # responses may omit fields with defaults
    "redirect_slashes": False,
    # Since 0.165, FastAPI would record requests too; `tracing` and `metrics` do. Others ignore it.
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
}


def create_app(settings: Settings, server: Server) -> Gateway:
    """Build the application, whose lifespan starts and stops the server."""
    plugin.installed()  # fail here, not at the first request
    state, routes = build_state(settings, server), RouteTable()
    app = Gateway(
        **_ABOUT,
        lifespan=state.lifespan,
        middleware=gateway_middleware(settings, state, routes),
        exception_handlers={HTTPException: handle_http_exception},
    )
    app.state.gateway = state
    app.state.startup = state.startup
    app.state.drain_state = state.drain_state
    app.state.registry = state.registry
    app.state.authenticator = state.authenticator
    add_routes(app, settings, state)
    app.state.routes = all_routes(app)
    routes.load(app.state.routes)
    return app


def create_transfer_app(settings: Settings, state: AppState) -> Gateway:
    """The application of a prefill server's listener for decode servers. It needs keys."""
    if state.authenticator is None:
        raise ValueError("role prefill needs keys")
    routes, drain_state = RouteTable(), state.drain_state
    app = Gateway(
        **_ABOUT,
        middleware=transfer_middleware(settings, state, routes),
        exception_handlers={HTTPException: handle_http_exception},
    )
    registry = state.registry
    is_ready = partial(_takes_prompts, drain_state, registry)
    include(app, transfer_router(registry, Prefill(Admission(state.limiter)), is_ready))
    # In Ray, a prefill replica has no other listener
    include(app, metrics_router(partial(families, state), state.server.metrics))
    app.state.routes = all_routes(app)
    routes.load(app.state.routes)
    return app


def _takes_prompts(drain_state: DrainState, registry: ModelRegistry) -> bool:
    return drain_state.ready and registry.is_ready()
