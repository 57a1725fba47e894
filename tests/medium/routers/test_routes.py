"""Routes of models, health, metrics and documents, and answers to unknown paths and methods."""

import openai.types
import pytest

from openai_frontend import __version__
from openai_frontend.config.types import OWN_SEGMENTS
from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS
from openai_frontend.request_context.record import APIS


@pytest.mark.honours("models.list")
async def test_openai_python_reads_the_model_list(world):
    """It has every model."""
    world.model(name="a")
    world.model(name="org/b")

    response = await world.client.get("/v1/models")

    models = [openai.types.Model.model_validate(each) for each in response.json()["data"]]
    assert [model.id for model in models] == ["a", "org/b"]
    assert response.json()["object"] == "list"


@pytest.mark.honours("models.retrieve", "models.retrieve.model")
@pytest.mark.parametrize("name", ["a", "org/b", "org/b/c.d:e"])
async def test_model_ids_may_contain_slashes(world, name):
    world.model(name=name)

    response = await world.client.get(f"/v1/models/{name}")

    assert (200, name, 64) == (
        response.status_code,
        response.json()["id"],
        response.json()["max_model_len"],
    )


async def test_unknown_model_is_a_404(world):
    response = await world.client.get("/v1/models/nobody")

    error = response.json()["error"]
    assert (
        response.status_code,
        error["code"],
        error["param"],
    ) == (404, "model_not_found", "model")


ROUTES = [
    ("GET", "/v1/nothing", 404, "unknown_url"),
    ("GET", "/redoc", 404, "unknown_url"),
    ("POST", "/v1/chat/completions//", 404, "unknown_url"),
    ("POST", "/", 405, "method_not_supported"),
    ("GET", "/v1/chat/completions", 405, "method_not_supported"),
    ("DELETE", "/v1/models/a", 405, "method_not_supported"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), ROUTES)
async def test_unknown_path_or_method_gets_the_openai_envelope(world, method, path, status, code):
    """Never FastAPI's."""

    response = await world.client.request(method, path)

    assert (status, code) == (response.status_code, response.json()["error"]["code"])


HINTS = [
    ("/chat/completions", "Did you mean /v1/chat/completions?"),
    ("/v1/v1/chat/completions", "Did you mean /v1/chat/completions?"),
    ("/openai/v1/models/a", "Did you mean /v1/models/a?"),
    ("/V1/Models", "Did you mean /v1/models?"),
    ("//v1/models", "Did you mean /v1/models?"),
    ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
    ("/models", "Did you mean /v1/models?"),
    ("/responses", "Did you mean /v1/responses?"),
    ("/anthropic/v1/messages", "Did you mean /v1/messages?"),
    ("/api/chat", "Ollama's API is not served: use POST /v1/chat/completions."),
]


@pytest.mark.parametrize(("path", "hint"), HINTS)
async def test_404_suggests_a_similar_path_or_endpoint(world, path, hint):
    response = await world.client.post(f"http://localhost{path}", json={})

    assert response.json()["error"]["message"] == f"Invalid URL (POST {path}). {hint}"


async def test_404_without_a_similar_path_suggests_nothing(world):
    response = await world.client.get("/v1/videos/edits")

    assert response.json()["error"]["message"] == "Invalid URL (GET /v1/videos/edits)"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/a", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
    ],
)
async def test_405_lists_every_method_of_the_path(world, method, path, allowed):
    """In the `allow` header. HEAD is allowed with GET."""
    response = await world.client.request(method, path)

    assert (response.status_code, response.headers["allow"]) == (405, allowed)


async def test_process_is_live_before_its_models_are_loaded(starting):
    response = await starting.client.get("/health/live")

    assert (response.status_code, response.json()["status"]) == (200, "live")


async def test_server_is_ready_once_every_model_is(world):
    response = await world.client.get("/health/ready")

    assert (response.status_code, response.json()) == (200, {"status": "ready"})


async def test_server_is_not_ready_while_models_load(starting):
    """With 503."""
    response = await starting.client.get("/health/ready")

    assert (response.status_code, response.json()["models"]) == (503, {})


async def test_not_ready_names_each_model_and_the_reason(world):
    world.registry.failures = {"dead": "the engine died"}

    response = await world.client.get("/health/ready")

    assert (response.status_code, response.json()["models"]) == (503, {"dead": "the engine died"})


async def test_health_paths_are_the_health_routes(routes):
    """They bypass host checks and the connection limit."""
    assert {route.path for route in routes if route.scope == "health"} == HEALTH_PATHS


async def test_apis_of_routes(routes):
    """Metrics and traces know the API of each route of Responses, Messages and chats."""
    scopes = {route.path: route.scope for route in routes}
    others = {path: api for path, api in scopes.items() if api in ("responses", "messages")}
    chats = [path for path in scopes if path.startswith("/v1/chat/")]

    assert {**others, **dict.fromkeys(chats, "chat_completions")} == APIS


async def test_own_segments_are_the_first_segments_of_the_routes(routes):
    """A root path may not start with one of them."""
    firsts = {route.path.split("/")[1] for route in routes} - {""}

    assert firsts == OWN_SEGMENTS


async def test_metrics_include_the_gateway_and_triton(world):
    """In the content type that Prometheus expects."""
    response = await world.client.get("/metrics")

    assert response.text.endswith("# HELP nv_x y\n")
    assert "openai_frontend_requests_total" in response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_metrics_are_openmetrics_if_the_client_accepts_it(world):
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    response = await world.client.get("/metrics", headers={"accept": accept})

    assert response.text.endswith("# EOF\n")
    assert response.headers["content-type"].startswith("application/openmetrics-text")


async def test_version_is_the_package_version(world):
    response = await world.client.get("/version")

    assert {"version": __version__} == response.json()


async def test_openapi_document_is_available_while_models_load(starting):
    """Its examples then name no model."""
    response = await starting.client.get("/openapi.json")

    body = response.json()["paths"]["/v1/completions"]["post"]["requestBody"]
    example = body["content"]["application/json"]["examples"]["text"]["value"]
    assert (response.status_code, example["model"]) == (200, "no-model-can-do-this")
