"""API keys in the whole application: every route, every scope, model names, public routes."""

import asyncio
import logging
from typing import Any

import httpx
import orjson
import pytest

from openai_frontend.auth.api_keys import LIMITED, OPENED_BY, SCOPES
from openai_frontend.config.settings import Settings
from openai_frontend.routers.routing import all_routes
from openai_frontend.server.internal_server import MetricsOnly
from tests.fast.auth import tokens
from tests.fast.auth.key_files import bearer, key, write
from tests.medium.routers.test_routing import cycles

CANARY = "sk-canary-3fb1c9"


@pytest.fixture
def keys_file(tmp_path):
    """One key per scope, named after the scope. The keys `all` and `canary` have every scope."""
    scoped = [key(scope, scopes=frozenset({scope})) for scope in SCOPES]
    return write(tmp_path / "keys.yaml", *scoped, key("all"), key("canary", secret=CANARY))


@pytest.fixture
def settings(keys_file):
    return Settings(max_body_bytes=10_000, keys_file=keys_file, public_health=False)


def addresses(app):
    """Yield method, path and the scopes that open each route that is not public.

    Includes HEAD, and each path with a trailing slash: the routes accept both.
    """
    routes: list[Any] = all_routes(app)
    for route in routes:
        if route.scope == "public":
            continue
        path = route.path.replace("{", "").replace(":path}", "").replace("}", "")
        methods = route.methods | {"HEAD"} if "GET" in route.methods else route.methods
        for method in sorted(methods):
            yield method, path, OPENED_BY[route.scope]
            yield method, f"{path}/", OPENED_BY[route.scope]


async def answers(world, headers_for):
    """The response of each route for each of its scopes, of which `headers_for` makes headers."""
    return {
        (method, path, scope): await world.client.request(method, path, headers=headers_for(scope))
        for method, path, scopes in addresses(world.app)
        for scope in scopes
    }


def denied(answer, status, code):
    """True if the response is this error. KServe's and Anthropic's errors have no code, HEAD
    responses no body.
    """
    if answer.status_code != status or answer.request.method == "HEAD":
        return answer.status_code == status
    error = answer.json()["error"]
    if answer.request.url.path.startswith("/v1/messages"):
        return error["type"] == _ANTHROPIC_TYPES[code]
    return "key" in error.lower() if isinstance(error, str) else error["code"] == code


_ANTHROPIC_TYPES = {
    "invalid_api_key": "authentication_error",
    "insufficient_permissions": "permission_error",
}


@pytest.mark.parametrize("headers", [{}, bearer("nobody's"), {"x-api-key": "nobody's"}], ids=str)
async def test_every_route_rejects_missing_and_unknown_keys(world, headers):
    """With 401, `invalid_api_key` and `www-authenticate: Bearer`."""
    got = await answers(world, lambda scope: headers)

    assert [at for at, each in got.items() if not denied(each, 401, "invalid_api_key")] == []
    assert {each.headers["www-authenticate"] for each in got.values()} == {"Bearer"}
    assert len(got) > 20


async def test_every_route_rejects_keys_of_other_scopes(world):
    """Each route answers 403 to the keys of all scopes that do not open it."""
    wrong = []
    for other in SCOPES:
        for method, path, scopes in addresses(world.app):
            answer = await world.client.request(method, path, headers=bearer(other))
            if other not in scopes and not denied(answer, 403, "insufficient_permissions"):
                wrong.append((other, method, path, answer.status_code))

    assert wrong == []


async def test_every_route_accepts_a_key_of_each_of_its_scopes(world):
    got = await answers(world, bearer)

    assert [at for at, each in got.items() if each.status_code == 401] == []
    closed = [at for at, each in got.items() if denied(each, 403, "insufficient_permissions")]
    assert closed == []


@pytest.fixture
async def with_api_key(world_of, keys_file):
    """A server with two API keys in its settings and a keys file."""
    settings = {"api_key": ["sk-general", "sk-second"], "public_health": False}
    return await world_of(Settings(**settings, keys_file=keys_file))


@pytest.mark.parametrize("secret", ["sk-general", "sk-second"])
async def test_every_route_accepts_an_api_key_of_the_settings(with_api_key, secret):
    got = await answers(with_api_key, lambda scope: bearer(secret))

    assert [at for at, each in got.items() if each.status_code == 401] == []
    closed = [at for at, each in got.items() if denied(each, 403, "insufficient_permissions")]
    assert closed == []


async def test_api_keys_work_beside_a_keys_file(with_api_key):
    """The server accepts keys from both and rejects all others."""
    secrets = ["sk-general", "models", "nobody's"]
    got = [
        (await with_api_key.client.get("/v1/models", headers=bearer(each))).status_code
        for each in secrets
    ]

    assert got == [200, 200, 401]


async def test_api_key_without_a_keys_file_closes_the_server(world_of):
    """Requests without the key get 401."""
    client = (await world_of(Settings(api_key=["sk-general"]))).client
    got = [
        (await client.get("/v1/models", headers=headers)).status_code
        for headers in ({}, bearer("sk-general"))
    ]

    assert got == [401, 200]


ODD_HOSTS = ["a/x?", "a#", "a@b", "test/health/live", "localhost", "", "[::1]", "test:9000"]


async def test_host_header_opens_no_route(world):
    got = {
        host: (await world.client.get("/v1/models", headers={"host": host})).status_code
        for host in ODD_HOSTS
    }

    assert dict.fromkeys(ODD_HOSTS, 401) == got


ODD_PATHS = [
    "//v1/models",
    "/health/live/../../v1/models",
    "/%2e%2e/v1/models",
    "/health/live%2f..%2f..%2fv1/models",
    "/V1/models",
    "/v1/models/",
    "/v1/models?x=/health/live",
    "/v1/models;/health/live",
    "/health/live//",
    "/health/other",
    "/Health/live",
    "/nothing",
]


METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "PURGE"]


@pytest.mark.parametrize("path", ODD_PATHS)
async def test_paths_that_resemble_public_ones_need_a_key(open_health, path):
    """Paths without a route need a key too."""
    got = {each: (await open_health.client.request(each, path)).status_code for each in METHODS}

    assert dict.fromkeys(METHODS, 401) == got


@pytest.fixture
def open_settings(keys_file):
    return Settings(keys_file=keys_file)


@pytest.fixture
async def open_health(world_of, open_settings):
    return await world_of(open_settings)


async def test_only_health_is_public_by_default(open_health):
    """Supervisors need no key; readers of metrics, the version and the documentation do."""
    got = [
        (await open_health.client.get(path)).status_code
        for path in ("/health/live", "/health/ready", "/metrics", "/version", "/openapi.json")
    ]

    assert got == [200, 200, 401, 401, 401]


OPEN_PATHS = ["/health", "/health/", "/health/live/", "/health/ready", "/healthz", "/ping", "/"]


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_health_and_root_are_public(open_health, path):
    """They need no key with GET or HEAD, with or without a trailing slash."""
    got = [(await open_health.client.request(each, path)).status_code for each in ("GET", "HEAD")]

    assert got == [200, 200]


async def test_only_pages_are_always_public(world, routes):
    """They need no key, whatever the settings say, and accept a wrong key."""
    page = "/playground/page.js"
    public = {
        page if "{name}" in route.path else route.path
        for route in routes
        if route.scope == "public"
    }
    got = {
        (await world.client.get(path, headers=headers)).status_code
        for path in public
        for headers in ({}, bearer("nobody's"))
    }

    files = {f"/docs/{name}" for name in ("start.js", "swagger-ui-bundle.js", "swagger-ui.css")}
    assert (public, got) == ({"/", "/favicon.ico", "/docs", *files, page}, {200, 204})


async def test_readiness_names_models_only_to_clients_with_a_key(open_health):
    """Without a key, a client learns that some model is not ready, but not which one or why."""
    open_health.registry.failures = {"secret-model": "/models/x is broken"}

    told = [
        (await open_health.client.get("/health/ready", headers=headers)).json()["models"]
        for headers in ({}, bearer("nobody's"), bearer("models"))
    ]
    assert told == [{}, {}, {"secret-model": "/models/x is broken"}]


async def test_readiness_hides_models_that_the_key_may_not_use(world_of, tmp_path):
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys))
    world.registry.failures = {"a": "why", "b": "secret"}

    answer = await world.client.get("/health/ready", headers=bearer("narrow"))

    assert (answer.status_code, answer.json()["models"]) == (503, {"a": "why"})


async def test_metrics_port_needs_a_key(open_health):
    """The separate port checks keys as the main port does."""
    transport = httpx.ASGITransport(MetricsOnly(open_health.app))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        got = [
            (await client.get("/metrics", headers=headers)).status_code
            for headers in ({}, bearer("models"), bearer("metrics"))
        ]

    assert got == [401, 403, 200]


async def test_metrics_and_docs_can_be_made_public(world_of, keys_file):
    """Each has its own setting, which opens no other route."""
    for setting, path in (
        ({"public_metrics": True}, "/metrics"),
        ({"web_pages": "public"}, "/openapi.json"),
    ):
        world = await world_of(Settings(keys_file=keys_file, **setting))

        assert (await world.client.get(path)).status_code == 200
        assert (await world.client.get("/v1/models")).status_code == 401


async def test_openapi_document_names_the_scope_of_each_route(open_health):
    """Public routes need none."""
    answer = await open_health.client.get("/openapi.json", headers=bearer("models"))
    document = answer.json()
    told = {
        (method.upper(), path): operation["security"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }

    scheme = document["components"]["securitySchemes"]["key"]
    assert scheme["scheme"] == "bearer"
    assert "Authorization: Bearer" in scheme["description"]
    assert told["POST", "/v1/chat/completions"] == [{"key": ["inference"]}]
    assert told["POST", "/v1/messages"] == [{"key": ["inference"]}, {"key": ["messages"]}]
    assert told["POST", "/v1/responses"] == [{"key": ["inference"]}, {"key": ["responses"]}]
    assert told["GET", "/v1/models/{id}"] == [{"key": ["models"]}]
    assert told["GET", "/health/ready"] == []


async def test_method_override_headers_are_ignored(world):
    override = {"x-http-method-override": "GET", **bearer("metrics")}

    answer = await world.client.post("/metrics", headers=override)

    assert answer.status_code == 405


async def test_unknown_path_with_a_key_is_404(world):
    """The scope of the key does not matter."""
    answer = await world.client.get("/nothing", headers=bearer("metrics"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_body_of_a_rejected_request_is_not_read(world):
    """Its size and type do not matter."""
    answer = await world.client.post("/v1/embeddings", content=b"x" * 20_000)

    assert answer.status_code == 401


async def test_keys_appear_in_no_log_and_no_response(world, caplog):
    """Neither valid nor unknown keys appear."""
    caplog.set_level(logging.DEBUG)
    world.model()
    told = ""
    for secret in (CANARY, CANARY + "x"):
        for method, path, _ in addresses(world.app):
            for headers in (bearer(secret), {"x-api-key": secret}, {"authorization": secret}):
                answer = await world.client.request(method, path, headers=headers)
                told += answer.text + str(answer.headers)

    assert CANARY not in caplog.text + told


async def test_model_list_has_only_models_that_the_key_may_use(world_of, tmp_path):
    """Other models get the same 404 as models that do not exist."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a", "org/*"]))
    world = await world_of(Settings(keys_file=keys))
    for name in ("a", "b", "org/c"):
        world.model(name=name)

    listed = await world.client.get("/v1/models", headers=bearer("narrow"))
    hidden = await world.client.get("/v1/models/b", headers=bearer("narrow"))
    missing = await world.client.get("/v1/models/z", headers=bearer("narrow"))

    assert [each["id"] for each in listed.json()["data"]] == ["a", "org/c"]
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "model_not_found")
    assert hidden.text.replace("'b'", "'z'") == missing.text


async def test_default_model_is_the_only_one_that_the_key_allows(world_of, tmp_path):
    """Other loaded models do not matter."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["b"]))
    world = await world_of(Settings(keys_file=keys))
    for name in ("a", "b", "c"):
        world.model(name=name)
    body = {"messages": [{"role": "user", "content": "hi"}]}

    answer = await world.client.post("/v1/chat/completions", json=body, headers=bearer("narrow"))

    used = {name for name, model in world.registry.models.items() if model.requests}
    assert (answer.status_code, used) == (200, {"b"})


@pytest.mark.parametrize("model", [None, "allowed-0", "hidden"])
async def test_errors_list_only_models_that_the_key_may_use(world_of, tmp_path, model):
    keys = write(tmp_path / "k.yaml", key("narrow", models=["allowed-*"]))
    world = await world_of(Settings(keys_file=keys))
    for name in ("allowed-1", "allowed-2", "hidden", "hidden-2"):
        world.model(name=name)
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}

    answer = await world.client.post("/v1/chat/completions", json=body, headers=bearer("narrow"))

    message = answer.json()["error"]["message"]
    assert "'allowed-1', 'allowed-2'" in message
    assert "hidden-2" not in message


@pytest.mark.parametrize("model", [None, "aa"])
async def test_errors_name_no_models_to_keys_without_the_models_scope(world, model):
    for name in ("a-model", "b-model"):
        world.model(name=name)
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}

    answer = await world.client.post("/v1/chat/completions", json=body, headers=bearer("inference"))

    assert answer.status_code in (400, 404)
    assert "-model" not in answer.json()["error"]["message"]


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/completions/render": {"prompt": "hi"},
    "/v1/decisions": {"input": "hi", "questions": [{"type": "predicate", "instructions": "a"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"input": "hi"},
    "/embed_sparse": {"inputs": "hi"},
    "/v1/pooling": {"input": "hi"},
    "/pooling": {"input": "hi"},
    "/v1/classify": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/v1/moderations": {"input": "hi"},
    "/invocations": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v2/rerank": {"query": "q", "documents": ["d"]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/audio/speech": {"input": "a"},
    "/v1/audio/transcriptions": {},
    "/v1/audio/translations": {},
}


async def test_inference_routes_hide_models_that_the_key_may_not_use(world_of, tmp_path):
    """With 404, `model_not_found`, or Anthropic's `not_found_error`."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys))
    world.model(name="b")
    got = {}
    for path, body in BODIES.items():
        body = {"model": "b", **body}
        form = path in ("/v1/audio/transcriptions", "/v1/audio/translations")
        sent = {"data": body, "files": {"file": b""}} if form else {"json": body}
        answer = await world.client.post(path, **sent, headers=bearer("narrow"))
        error = answer.json()["error"]
        got[path] = (answer.status_code, error.get("code", error["type"]))

    expected = dict.fromkeys(BODIES, (404, "model_not_found"))
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        expected[path] = (404, "not_found_error")
    assert expected == got


async def test_kserve_routes_hide_models_that_the_key_may_not_use(world_of, tmp_path):
    """They neither show nor change such a model."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys, enable_model_management=True))
    routes: list[Any] = all_routes(world.app)
    paths = {
        (method, route.path)
        for route in routes
        for method in route.methods
        if route.path.startswith("/v2/") and "{model}" in route.path
    }
    kept = {at for at in paths if not at[1].endswith(("/trace/setting", "/{action}"))}
    got = {}
    for method, path in kept:
        asked = path.replace("{model}", "b").replace("{version}", "1")
        answer = await world.client.request(method, asked, json={}, headers=bearer("narrow"))
        got[method, path] = (answer.status_code, answer.json()["error"])

    message = "The model 'b' does not exist, or the key may not use it."
    assert len(kept) > 10
    assert dict.fromkeys(kept, (404, message)) == got


@pytest.mark.parametrize("what", ["load", "unload"])
async def test_model_management_hides_models_that_the_key_may_not_use(world_of, tmp_path, what):
    """A key that may load models may load only those that it allows. Others get a 404."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys, enable_model_management=True))
    world.model(name="b")
    asked: list[tuple[str, dict[str, Any]]] = [
        (f"/v1/models/NAME/{what}", {}),
        (f"/v1/{what}_lora_adapter", {"lora_name": "NAME:x"}),
        (f"/v1/{what}_lora_adapter", {"lora_name": "x", "model": "NAME"}),
    ]
    for path, fields in asked:
        hidden, missing = [
            await world.client.post(
                path.replace("NAME", name),
                json={at: value.replace("NAME", name) for at, value in fields.items()},
                headers=bearer("narrow"),
            )
            for name in "bz"
        ]

        assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "model_not_found")
        assert hidden.text.replace("'b", "'z") == missing.text


async def test_bodies_cover_every_inference_route(world):
    """KServe's routes have a test of their own."""
    routes = addresses(world.app)
    opened = [scopes for each, scopes in OPENED_BY.items() if each in LIMITED]
    posts = {path.rstrip("/") for method, path, scopes in routes if scopes in opened}

    assert {path for path in posts if not path.startswith("/v2/models")} == set(BODIES)


@pytest.mark.parametrize("stream", [False, True])
async def test_page_of_an_allowed_origin_may_read_responses(world_of, keys_file, stream):
    """Streamed or complete."""
    page = "https://chat.example"
    world = await world_of(Settings(keys_file=keys_file, cors_origins=[page]))
    world.model()
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    answer = await world.client.post(
        "/v1/chat/completions", json=body, headers={"origin": page, **bearer("all")}
    )

    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page)
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize("with_keys", [False, True])
async def test_provider_tokens_open_the_routes_of_their_scopes(
    world_of, tmp_path, keys_file, with_keys
):
    """With or without a keys file."""
    path = tmp_path / "jwks.json"
    path.write_bytes(tokens.jwks())
    world = await world_of(
        Settings(
            keys_file=keys_file if with_keys else None,
            jwks=str(path),
            jwt_issuer=tokens.ISSUER,
            jwt_audience=tokens.AUDIENCE,
        )
    )
    headers = bearer(tokens.token().decode())
    async with asyncio.timeout(30):
        while (await world.client.get("/v1/models", headers=headers)).status_code == 401:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    got = [
        (await world.client.get("/v1/models")).status_code,
        (await world.client.get("/metrics", headers=headers)).status_code,
        (await world.client.get("/metrics", headers=bearer("all"))).status_code,
    ]
    assert got == [401, 403, 200 if with_keys else 401]


@pytest.mark.parametrize("stream", [False, True])
async def test_request_with_a_key_leaves_no_reference_cycles(world_of, tmp_path, stream):
    keys = write(tmp_path / "k.yaml", key("a", requests_per_minute=9, tokens_per_minute=10_000))
    world = await world_of(Settings(keys_file=keys))
    world.model()
    message = {"role": "user", "content": "hi"}
    body = {"model": "fake", "messages": [message], "stream": stream}
    headers = [(b"authorization", b"Bearer a")]
    left = await cycles(world.app, "/v1/chat/completions", orjson.dumps(body), headers)

    assert left == []
