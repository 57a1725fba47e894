"""Who asks, as the access middleware found out."""

from fastapi import Request

from openai_frontend.access.caller import Caller
from openai_frontend.access.scopes import SCOPE_OF
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.served_model import ServedModel
from openai_frontend.serving.callers_models import CallersModels, Models
from openai_frontend.serving.model_lookup import Task, find_model


def caller_of(request: Request) -> Caller | None:
    """None where the server has no keys, or the address needs none."""
    caller: Caller | None = request.scope["state"].get("caller")
    return caller


def is_stranger(request: Request) -> bool:
    """Whether the server has keys, and this request came in without one."""
    state = request.scope["state"]
    return "caller" in state and state["caller"] is None


def models_for(request: Request, registry: ModelRegistry) -> Models:
    """The models that this request may name, each at its caller's cost."""
    caller = caller_of(request)
    if caller is None:
        return registry
    return CallersModels(registry, caller, request.scope["state"].get("reservation"))


def may_list(request: Request) -> bool:
    """Whether errors may say which models there are."""
    caller = caller_of(request)
    return caller is None or SCOPE_OF["models"] in caller.key.scopes


async def model_for(
    request: Request, registry: ModelRegistry, name: str | None, task: Task
) -> ServedModel:
    """The model that the request names, or the only one for the task, noted for the metrics: a
    name that is served. It may have to be loaded first.
    """
    models = models_for(request, registry)
    return noted(request, await find_model(models, name, task, may_list=may_list(request)))


def noted(request: Request, model: ServedModel) -> ServedModel:
    """The model of this request, noted for the metrics, and kept until the request's end."""
    state = request.scope["state"]
    state["model"], state["model_name"] = model.name, model.model_name  # asked for; in Triton
    if (held := state.get("held_models")) is not None:
        model.use.hold()
        held.append(model.use)
    return model
