"""The ASGI application: routes, middleware and metrics from settings and a Triton server."""

from openai_frontend.app.application import Gateway, create_app, create_transfer_app
from openai_frontend.app.middleware import public_scopes, request_records

__all__ = ["Gateway", "create_app", "create_transfer_app", "public_scopes", "request_records"]
