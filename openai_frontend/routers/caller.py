"""Who asks, as the access middleware found out."""

from fastapi import Request

from openai_frontend.access.caller import Caller
from openai_frontend.model_registry import ModelRegistry
from openai_frontend.serving.callers_models import CallersModels, Models


def caller_of(request: Request) -> Caller | None:
    """None where the server has no keys, or the address is open to everybody."""
    caller: Caller | None = request.scope["state"].get("caller")
    return caller


def models_for(request: Request, registry: ModelRegistry) -> Models:
    """The models that this request may name, each at its caller's cost."""
    caller = caller_of(request)
    return registry if caller is None else CallersModels(registry, caller)
