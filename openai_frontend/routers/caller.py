"""Who asks, as the access middleware found out."""

from fastapi import Request

from openai_frontend.auth.principal import Principal
from openai_frontend.auth.scopes import REQUIRED_SCOPE
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.served_model import ServedModel
from openai_frontend.serving.admission.authorized_models import AuthorizedModels, ModelProvider
from openai_frontend.serving.admission.model_lookup import Task, find_model


def caller_of(request: Request) -> Principal | None:
    """None where the server has no keys, or the address needs none."""
    caller: Principal | None = request.scope["state"].get("principal")
    return caller


def is_stranger(request: Request) -> bool:
    """Whether the server has keys, and this request came in without one."""
    state = request.scope["state"]
    return "principal" in state and state["principal"] is None


def models_for(request: Request, registry: ModelRegistry) -> ModelProvider:
    """The models that this request may name, each at its caller's cost."""
    caller = caller_of(request)
    if caller is None:
        return registry
    return AuthorizedModels(registry, caller, request.scope["state"].get("reservation"))


def may_list(request: Request) -> bool:
    """Whether errors may say which models there are."""
    caller = caller_of(request)
    return caller is None or REQUIRED_SCOPE["models"] in caller.key.scopes


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
    if (held := state.get("model_leases")) is not None:
        model.use.hold()
        held.append(model.use)
    return model
