"""Paths of KServe's protocol, the models in them, and the errors of their OpenAPI description."""

from typing import Any

from fastapi import Request

from openai_frontend.kserve.models import (
    Core,
    ModelAddress,
    check_inference,
    check_visible,
    model_address,
)
from openai_frontend.routers.request import principal_of
from schemas.kserve import KServeError

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"


def visible_model(request: Request) -> ModelAddress:
    """To be told of. Raises where the name can be none, or is not for the caller's key."""
    return check_visible(principal_of(request), _addressed(request))


def model_for_inference(request: Request, core: Core) -> ModelAddress:
    """To be given work; noted for the metrics where it is there."""
    model = check_inference(principal_of(request), _addressed(request))
    if core.model_is_ready(model.name, model.version):
        state = request.scope["state"]
        state["model"] = state["model_name"] = model.name
    return model


def _addressed(request: Request) -> ModelAddress:
    return model_address(request.path_params["model"], request.path_params.get("version"))


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": KServeError, "description": "The request cannot be served as it is."},
    "5XX": {"model": KServeError, "description": "The server or the model failed."},
}
