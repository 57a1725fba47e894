import openai.types
import pytest

from openai_frontend import __version__
from openai_frontend.config.types import OWN_SEGMENTS
from openai_frontend.middleware.trusted_hosts import HEALTH_PATHS


@pytest.mark.honours("models.list")
async def test_list_models(world):
    """The list has every model, in the form that openai-python reads."""
    world.model(name="a")
    world.model(name="org/b")

    response = await world.client.get("/v1/models")

    models = [openai.types.Model.model_validate(each) for each in response.json()["data"]]
    assert [model.id for model in models] == ["a", "org/b"]
    assert response.json()["object"] == "list"


@pytest.mark.honours("models.retrieve", "models.retrieve.model")
@pytest.mark.parametrize("name", ["a", "org/b", "org/b/c.d:e"])
async def test_retrieve_model(world, name):
    """A model is found by its id, slashes and all."""
    world.model(name=name)

    response = await world.client.get(f"/v1/models/{name}")

    assert (200, name, 64) == (
        response.status_code,
        response.json()["id"],
        response.json()["max_model_len"],
    )


async def test_retrieve_unknown_model(world):
    """An unknown id is OpenAI's 404."""

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
async def test_wrong_route(world, method, path, status, code):
    """A wrong address or method has OpenAI's envelope too, never FastAPI's."""

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
    ("/v1/responses", "OpenAI's Responses API is not served: use POST /v1/chat/completions."),
    ("/v1/messages", "Anthropic's Messages API is not served: use POST /v1/chat/completions."),
    ("/api/chat", "Ollama's API is not served: use POST /v1/chat/completions."),
]


@pytest.mark.parametrize(("path", "hint"), HINTS)
async def test_what_an_unknown_address_may_mean(world, path, hint):
    """The 404 suggests the address that was meant, or what is served in its place."""
    response = await world.client.post(f"http://localhost{path}", json={})

    assert response.json()["error"]["message"] == f"Invalid URL (POST {path}). {hint}"


async def test_an_address_like_no_other(world):
    """Nothing is suggested where nothing is near."""
    response = await world.client.get("/v1/audio/speech")

    assert response.json()["error"]["message"] == "Invalid URL (GET /v1/audio/speech)"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/a", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
    ],
)
async def test_wrong_method_tells_the_right_one(world, method, path, allowed):
    """The allow header of a 405 has every method that the path answers; HEAD goes with GET."""
    response = await world.client.request(method, path)

    assert (response.status_code, response.headers["allow"]) == (405, allowed)


async def test_live(starting):
    """The process is live before its models are."""
    response = await starting.client.get("/health/live")

    assert (response.status_code, response.json()["status"]) == (200, "live")


async def test_ready(world):
    """Ready is 200 once every model can serve."""
    response = await world.client.get("/health/ready")

    assert (response.status_code, response.json()) == (200, {"status": "ready"})


async def test_not_ready_while_loading(starting):
    """While the models load, ready is 503."""
    response = await starting.client.get("/health/ready")

    assert (response.status_code, response.json()["models"]) == (503, {})


async def test_not_ready_names_the_models(world):
    """Each model that cannot serve is named with its reason."""
    world.registry.failures = {"dead": "the engine died"}

    response = await world.client.get("/health/ready")

    assert (response.status_code, response.json()["models"]) == (503, {"dead": "the engine died"})


async def test_health_paths(world):
    """What passes host checks and full servers are the routes of health, and no others."""
    assert {route.path for route in world.app.routes if route.scope == "health"} == HEALTH_PATHS


async def test_first_segments(world):
    """What a root path may not start with is what the routes start with."""
    firsts = {route.path.split("/")[1] for route in world.app.routes} - {""}

    assert firsts == OWN_SEGMENTS


async def test_metrics(world):
    """Metrics are the gateway's and Triton's, in the type that Prometheus expects."""
    response = await world.client.get("/metrics")

    assert response.text.endswith("# HELP nv_x y\n")
    assert "openai_frontend_requests_total" in response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_openmetrics(world):
    """A client that takes OpenMetrics gets it."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    response = await world.client.get("/metrics", headers={"accept": accept})

    assert response.text.endswith("# EOF\n")
    assert response.headers["content-type"].startswith("application/openmetrics-text")


async def test_version(world):
    """The version is the package's."""
    response = await world.client.get("/version")

    assert {"version": __version__} == response.json()


async def test_openapi_while_loading(starting):
    """The document is there before the models are; its examples then name none."""
    response = await starting.client.get("/openapi.json")

    body = response.json()["paths"]["/v1/completions"]["post"]["requestBody"]
    example = body["content"]["application/json"]["examples"]["text"]["value"]
    assert (response.status_code, example["model"]) == (200, "no-model-can-do-this")
