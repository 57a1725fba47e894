import asyncio
import logging
from typing import Any

import httpx
import orjson
import pytest

from openai_frontend.auth.keys import REQUIRED_SCOPE, SCOPES
from openai_frontend.config.settings import Settings
from openai_frontend.server.metrics_server import MetricsOnly
from tests.unit.auth import tokens
from tests.unit.auth.key_files import bearer, key, write
from tests.unit.routers.test_routing import cycles

CANARY = "sk-canary-3fb1c9"


@pytest.fixture
def keys_file(tmp_path):
    """A key for each scope, named after it; `all` and the canary have every scope."""
    scoped = [key(scope, scopes=frozenset({scope})) for scope in SCOPES]
    return write(tmp_path / "keys.yaml", *scoped, key("all"), key("canary", secret=CANARY))


@pytest.fixture
def settings(keys_file):
    return Settings(max_body_bytes=10_000, keys_file=keys_file, public_health=False)


def addresses(app):
    """Every route that may need a key: method, a path of it, the scope that it needs. HEAD and a
    slash at the end are as good as the route's own spelling.
    """
    for route in app.routes:
        if route.scope == "public":
            continue
        path = route.path.replace("{", "").replace(":path}", "").replace("}", "")
        methods = route.methods | {"HEAD"} if "GET" in route.methods else route.methods
        for method in sorted(methods):
            yield method, path, REQUIRED_SCOPE[route.scope]
            yield method, f"{path}/", REQUIRED_SCOPE[route.scope]


async def answers(world, headers_for):
    """The status of each address, with the headers that are made for its scope."""
    return {
        (method, path): (await world.client.request(method, path, headers=headers_for(scope)))
        for method, path, scope in addresses(world.app)
    }


def denied(answer, status, code):
    """KServe's addresses tell no code, and an answer to HEAD has no body."""
    if answer.status_code != status or answer.request.method == "HEAD":
        return answer.status_code == status
    error = answer.json()["error"]
    return "key" in error.lower() if isinstance(error, str) else error["code"] == code


@pytest.mark.parametrize("headers", [{}, bearer("nobody's"), {"x-api-key": "nobody's"}], ids=str)
async def test_without_a_key_that_is_known(world, headers):
    """No address opens to a request without a key, or with one that nobody has."""
    got = await answers(world, lambda scope: headers)

    assert [at for at, each in got.items() if not denied(each, 401, "invalid_api_key")] == []
    assert {each.headers["www-authenticate"] for each in got.values()} == {"Bearer"}
    assert len(got) > 20


async def test_with_a_key_for_something_else(world):
    """No address opens to the keys of the three scopes that are not its own."""
    wrong = []
    for other in SCOPES:
        for method, path, scope in addresses(world.app):
            answer = await world.client.request(method, path, headers=bearer(other))
            if other != scope and not denied(answer, 403, "insufficient_permissions"):
                wrong.append((other, method, path, answer.status_code))

    assert wrong == []


async def test_with_the_right_key(world):
    """Every address opens to a key of its scope."""
    got = await answers(world, bearer)

    assert [at for at, each in got.items() if each.status_code == 401] == []
    closed = [at for at, each in got.items() if denied(each, 403, "insufficient_permissions")]
    assert closed == []


@pytest.fixture
async def with_api_key(world_of, keys_file):
    """Two general keys beside a file of keys."""
    settings = {"api_key": ["sk-general", "sk-second"], "public_health": False}
    return await world_of(Settings(**settings, keys_file=keys_file))


@pytest.mark.parametrize("secret", ["sk-general", "sk-second"])
async def test_with_an_api_key_of_the_settings(with_api_key, secret):
    """Every address opens to it."""
    got = await answers(with_api_key, lambda scope: bearer(secret))

    assert [at for at, each in got.items() if each.status_code == 401] == []
    closed = [at for at, each in got.items() if denied(each, 403, "insufficient_permissions")]
    assert closed == []


async def test_api_keys_and_a_keys_file(with_api_key):
    """Keys of both open, others do not."""
    secrets = ["sk-general", "models", "nobody's"]
    got = [
        (await with_api_key.client.get("/v1/models", headers=bearer(each))).status_code
        for each in secrets
    ]

    assert got == [200, 200, 401]


async def test_an_api_key_without_a_keys_file(world_of):
    """It closes the server to everybody else."""
    client = (await world_of(Settings(api_key=["sk-general"]))).client
    got = [
        (await client.get("/v1/models", headers=headers)).status_code
        for headers in ({}, bearer("sk-general"))
    ]

    assert got == [401, 200]


ODD_HOSTS = ["a/x?", "a#", "a@b", "test/health/live", "localhost", "", "[::1]", "test:9000"]


async def test_hosts(world):
    """What the Host header says opens nothing."""
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
async def test_odd_addresses(open_health, path):
    """What only resembles an address that is open needs a key, also where there is nothing."""
    got = {each: (await open_health.client.request(each, path)).status_code for each in METHODS}

    assert dict.fromkeys(METHODS, 401) == got


@pytest.fixture
def open_settings(keys_file):
    return Settings(keys_file=keys_file)


@pytest.fixture
async def open_health(world_of, open_settings):
    return await world_of(open_settings)


async def test_what_is_open_by_default(open_health):
    """A supervisor needs no key, and who scrapes or reads does."""
    got = [
        (await open_health.client.get(path)).status_code
        for path in ("/health/live", "/health/ready", "/metrics", "/version", "/docs")
    ]

    assert got == [200, 200, 401, 401, 401]


OPEN_PATHS = ["/health", "/health/", "/health/live/", "/health/ready", "/healthz", "/ping", "/"]


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_open_paths(open_health, path):
    """Health checks and the front page need no key, by GET and HEAD, with a slash or without."""
    got = [(await open_health.client.request(each, path)).status_code for each in ("GET", "HEAD")]

    assert got == [200, 200]


async def test_public_routes(world):
    """Two routes never need a key, whatever the settings say; a wrong key does not close them."""
    public = [route.path for route in world.app.routes if route.scope == "public"]
    got = {
        (await world.client.get(path, headers=headers)).status_code
        for path in public
        for headers in ({}, bearer("nobody's"))
    }

    assert (public, got) == (["/", "/favicon.ico"], {200, 204})


async def test_who_learns_why_a_model_is_not_ready(open_health):
    """A stranger learns that some model is not; who has a key, which one and why."""
    open_health.registry.failures = {"secret-model": "/models/x is broken"}

    told = [
        (await open_health.client.get("/health/ready", headers=headers)).json()["models"]
        for headers in ({}, bearer("nobody's"), bearer("models"))
    ]
    assert told == [{}, {}, {"secret-model": "/models/x is broken"}]


async def test_a_model_of_others_that_is_not_ready(world_of, tmp_path):
    """Its name is nobody's but theirs who may use it."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys))
    world.registry.failures = {"a": "why", "b": "secret"}

    answer = await world.client.get("/health/ready", headers=bearer("narrow"))

    assert (answer.status_code, answer.json()["models"]) == (503, {"a": "why"})


async def test_the_port_of_metrics(open_health):
    """It asks for a key as the first one does."""
    transport = httpx.ASGITransport(MetricsOnly(open_health.app))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        got = [
            (await client.get("/metrics", headers=headers)).status_code
            for headers in ({}, bearer("models"), bearer("metrics"))
        ]

    assert got == [401, 403, 200]


async def test_what_can_be_opened(world_of, keys_file):
    """Settings open metrics and pages, each on its own."""
    for name, path in (("metrics", "/metrics"), ("docs", "/docs/start.js")):
        world = await world_of(Settings(keys_file=keys_file, **{f"public_{name}": True}))

        assert (await world.client.get(path)).status_code == 200
        assert (await world.client.get("/v1/models")).status_code == 401


async def test_what_the_description_says_of_keys(open_health):
    """Each address says which scope it needs, and what is open that it needs none."""
    answer = await open_health.client.get("/openapi.json", headers=bearer("models"))
    document = answer.json()
    told = {
        (method.upper(), path): operation["security"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }

    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert told["POST", "/v1/chat/completions"] == [{"key": ["inference"]}]
    assert told["GET", "/v1/models/{id}"] == [{"key": ["models"]}]
    assert told["GET", "/health/ready"] == []


async def test_overriding_the_method(world):
    """Headers that ask for another method are not heard."""
    override = {"x-http-method-override": "GET", **bearer("metrics")}

    answer = await world.client.post("/metrics", headers=override)

    assert answer.status_code == 405


async def test_no_such_address(world):
    """Who has a key is told that there is nothing, whatever the key is for."""
    answer = await world.client.get("/nothing", headers=bearer("metrics"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_the_body_of_a_refused_request(world):
    """It is not read: its size and type do not matter."""
    answer = await world.client.post("/v1/embeddings", content=b"x" * 20_000)

    assert answer.status_code == 401


async def test_keys_in_no_log(world, caplog):
    """Neither a key that is known nor one that is not stands in the log, nor in an answer."""
    caplog.set_level(logging.DEBUG)
    world.model()
    told = ""
    for secret in (CANARY, CANARY + "x"):
        for method, path, _ in addresses(world.app):
            for headers in (bearer(secret), {"x-api-key": secret}, {"authorization": secret}):
                answer = await world.client.request(method, path, headers=headers)
                told += answer.text + str(answer.headers)

    assert CANARY not in caplog.text + told


async def test_which_models_are_listed(world_of, tmp_path):
    """The list holds what the key allows, and nothing tells of the rest."""
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


async def test_the_only_model_of_a_key(world_of, tmp_path):
    """A request without a model uses the one that its key allows, whatever else is loaded."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["b"]))
    world = await world_of(Settings(keys_file=keys))
    for name in ("a", "b", "c"):
        world.model(name=name)
    body = {"messages": [{"role": "user", "content": "hi"}]}

    answer = await world.client.post("/v1/chat/completions", json=body, headers=bearer("narrow"))

    used = {name for name, model in world.registry.models.items() if model.requests}
    assert (answer.status_code, used) == (200, {"b"})


@pytest.mark.parametrize("model", [None, "allowed-0", "hidden"])
async def test_whose_names_errors_list(world_of, tmp_path, model):
    """Errors list the models that the key allows, and no others."""
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
async def test_a_key_that_may_not_list_models(world, model):
    """Errors list nothing for it."""
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
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v2/rerank": {"query": "q", "documents": ["d"]},
    "/rerank": {"query": "q", "documents": ["d"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/detokenize": {"tokens": [1]},
}


async def test_a_model_of_others(world_of, tmp_path):
    """No address serves a model that the key does not allow."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys))
    world.model(name="b")
    got = {}
    for path, body in BODIES.items():
        body = {"model": "b", **body}
        answer = await world.client.post(path, json=body, headers=bearer("narrow"))
        got[path] = (answer.status_code, answer.json()["error"]["code"])

    assert dict.fromkeys(BODIES, (404, "model_not_found")) == got


async def test_a_model_of_others_by_kserve(world_of, tmp_path):
    """Nor does KServe's protocol tell of one, or change it."""
    keys = write(tmp_path / "k.yaml", key("narrow", models=["a"]))
    world = await world_of(Settings(keys_file=keys, enable_model_management=True))
    paths = {
        (method, route.path)
        for route in world.app.routes
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
async def test_a_model_of_others_is_not_changed(world_of, tmp_path, what):
    """Nor told of: who may load models may load those that his key allows."""
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


async def test_the_addresses_of_models_are_all_tried(world):
    """No address is missing above."""
    routes = addresses(world.app)
    posts = {path.rstrip("/") for method, path, scope in routes if scope == "inference"}

    assert {path for path in posts if not path.startswith("/v2/models")} == set(BODIES)


@pytest.mark.parametrize("stream", [False, True])
async def test_web_pages(world_of, keys_file, stream):
    """A page of a known origin may read answers, streamed or whole."""
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
async def test_tokens_of_a_provider(world_of, tmp_path, keys_file, with_keys):
    """They open what their scopes say, with a keys file beside them or without."""
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
    async with asyncio.timeout(10):
        while (await world.client.get("/v1/models", headers=headers)).status_code == 401:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    got = [
        (await world.client.get("/v1/models")).status_code,
        (await world.client.get("/metrics", headers=headers)).status_code,
        (await world.client.get("/metrics", headers=bearer("all"))).status_code,
    ]
    assert got == [401, 403, 200 if with_keys else 401]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_reference_cycles(world_of, tmp_path, stream):
    """With keys, too, a request leaves nothing to the garbage collector."""
    keys = write(tmp_path / "k.yaml", key("a", requests_per_minute=9, tokens_per_minute=10_000))
    world = await world_of(Settings(keys_file=keys))
    world.model()
    message = {"role": "user", "content": "hi"}
    body = {"model": "fake", "messages": [message], "stream": stream}
    headers = [(b"authorization", b"Bearer a")]
    left = await cycles(world.app, "/v1/chat/completions", orjson.dumps(body), headers)

    assert left == []
