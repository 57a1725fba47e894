"""The groups of all routes, which `--http-restricted-api` and `--openai-restricted-api` name."""

from collections.abc import Mapping

from starlette.routing import BaseRoute

from openai_frontend.auth.api_keys import RouteScope
from openai_frontend.routers.routing import DirectRoute

# Scopes whose routes are all in one group
_BY_SCOPE: Mapping[RouteScope, str | None] = {
    "inference": "inference",
    "messages": "inference",
    "responses": "inference",
    "health": "health",
    "docs": None,
    "public": None,
}
_MODEL = "/v2/models/{model}"
# The routes of other scopes by their paths, without the version of a model
_BY_PATH: Mapping[str, str] = {
    "/v2": "metadata",
    "/version": "metadata",
    _MODEL: "metadata",
    f"{_MODEL}/ready": "health",
    f"{_MODEL}/config": "model-config",
    f"{_MODEL}/stats": "statistics",
    "/v2/models/stats": "statistics",
    "/v2/repository/index": "model-repository",
    "/v2/repository/{repository}/index": "model-repository",
    "/v2/repository/models/{model}/load": "model-repository",
    "/v2/repository/models/{model}/unload": "model-repository",
    "/v2/repository/{repository}/models/{model}/{action}": "model-repository",
    "/v2/logging": "logging",
    "/v2/trace/setting": "trace",
    f"{_MODEL}/trace/setting": "trace",
    "/v2/systemsharedmemory/status": "shared-memory",
    "/v2/systemsharedmemory/unregister": "shared-memory",
    "/v2/systemsharedmemory/region/{region}/status": "shared-memory",
    "/v2/systemsharedmemory/region/{region}/register": "shared-memory",
    "/v2/systemsharedmemory/region/{region}/unregister": "shared-memory",
    "/v2/cudasharedmemory/{rest:path}": "shared-memory",
    "/v1/models": "model-repository",
    "/v1/models/{id:path}": "model-repository",
    "/v1/models/{id:path}/load": "model-repository",
    "/v1/models/{id:path}/unload": "model-repository",
    "/v1/models/{id:path}/sleep": "model-repository",
    "/v1/models/{id:path}/wake": "model-repository",
    "/v1/load_lora_adapter": "model-repository",
    "/v1/unload_lora_adapter": "model-repository",
    "/sleep": "model-repository",
    "/wake_up": "model-repository",
    "/is_sleeping": "model-repository",
    "/metrics": "metrics",
}


def group_of(route: BaseRoute) -> str | None:
    """None for pages, which no option restricts. Raises LookupError for a route that is not in the
    tables: it must not be reachable around a restriction.
    """
    if not isinstance(route, DirectRoute) or route.scope is None:
        raise LookupError(f"{route!r} has no group")
    if route.scope in _BY_SCOPE:
        return _BY_SCOPE[route.scope]
    return _BY_PATH[route.path.replace("/versions/{version}", "")]
