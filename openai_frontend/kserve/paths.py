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
    """The model to describe. Raises if the name is invalid or the key does not allow it."""
    return check_visible(principal_of(request), _model_in_path(request))


def model_for_inference(request: Request, core: Core) -> ModelAddress:
    """The model to run; recorded for the metrics if it is ready."""
    model = check_inference(principal_of(request), _model_in_path(request))
    if core.model_is_ready(model.name, model.version):
        state = request.scope["state"]
        state["model"] = state["model_name"] = model.name
    return model


def _model_in_path(request: Request) -> ModelAddress:
    return model_address(request.path_params["model"], request.path_params.get("version"))


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": KServeError, "description": "The request is invalid or not allowed."},
    "5XX": {"model": KServeError, "description": "The server or the model failed."},
}
