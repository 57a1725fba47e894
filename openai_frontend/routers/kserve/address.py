"""The model that an address of KServe's protocol names, for the caller who names it."""

from fastapi import Request

from openai_frontend.routers.caller import caller_of
from openai_frontend.serving.kserve.addresses import ModelAddress, model_address
from openai_frontend.serving.kserve.callers import check_inference, check_known
from openai_frontend.serving.kserve.core import Core

MODEL = "/v2/models/{model}"
VERSION = MODEL + "/versions/{version}"


def known_model(request: Request) -> ModelAddress:
    """To be told of. Raises where the name can be none, or is not for the caller's key."""
    return check_known(caller_of(request), _named(request))


def asked_model(request: Request, core: Core) -> ModelAddress:
    """To be given work; noted for the metrics where it is there."""
    model = check_inference(caller_of(request), _named(request))
    if core.model_is_ready(model.name, model.version):
        state = request.scope["state"]
        state["model"] = state["model_name"] = model.name
    return model


def _named(request: Request) -> ModelAddress:
    return model_address(request.path_params["model"], request.path_params.get("version"))
