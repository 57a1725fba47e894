"""GET and POST /v2/logging and /v2/trace/setting: settings that change while the server runs."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson
from fastapi import APIRouter, Request, Response

from openai_frontend.kserve.inference_routes import MODEL, visible_model
from openai_frontend.kserve.log_settings import LogSettings
from openai_frontend.kserve.models import Core, ModelAddress
from openai_frontend.routers.request import read_body
from openai_frontend.routers.routing import AdminRoute
from openai_frontend.serving.request.request_body import BodyReader
from schemas.kserve import SettingsUpdate


class Settings(Protocol):
    """Settings by the keys of an extension of Triton."""

    def get(self) -> Mapping[str, Any]: ...
    def update(self, settings: Mapping[str, Any]) -> None: ...


class ModelsSettings(Settings, Protocol):
    """Settings of all models, and of each."""

    def of_model(self, core: Core, model: ModelAddress) -> Settings: ...


SettingsOf = Callable[[Request], Settings]  # may raise for a model in the path


def settings_router(core: Core, log: LogSettings, trace: ModelsSettings) -> APIRouter:
    """All methods answer with all settings. The OpenAPI document omits them."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)
    paths: Mapping[str, SettingsOf] = {
        "/v2/logging": lambda _: log,
        "/v2/trace/setting": lambda _: trace,
        MODEL + "/trace/setting": lambda request: trace.of_model(core, visible_model(request)),
    }
    for path, settings_of in paths.items():
        router.add_api_route(path, _read(settings_of), methods=["GET"])
        router.add_api_route(path, _change(settings_of), methods=["POST"])
    return router


def _read(settings_of: SettingsOf) -> Callable[[Request], Any]:
    async def read(request: Request) -> Response:
        return _json(settings_of(request).get())

    return read


def _change(settings_of: SettingsOf) -> Callable[[Request], Any]:
    reader = BodyReader(SettingsUpdate)

    async def change(request: Request) -> Response:
        settings = settings_of(request)
        if body := await read_body(request.receive):
            settings.update((await reader.read(body)).model_extra or {})
        return _json(settings.get())

    return change


def _json(document: object) -> Response:
    return Response(orjson.dumps(document), media_type="application/json")
