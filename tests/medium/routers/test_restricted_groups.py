"""Restricted groups in the whole application: every route, both options, and keys beside them."""

from typing import Any

import pytest

from openai_frontend.config.restricted_groups import GROUPS, HTTP, OPENAI, OPENAI_GROUPS
from openai_frontend.config.settings import Settings
from openai_frontend.middleware.error_responses import error_form
from openai_frontend.routers.restricted_routes import group_of
from openai_frontend.routers.routing import DirectRoute, all_routes
from tests.fast.auth.key_files import bearer
from tests.medium.routers.test_access import addresses

EVERY = [f"{group}:X-Secret-{group}=canary-{group}" for group in GROUPS]


def restricting(**options: Any) -> Settings:
    return Settings(max_body_bytes=10_000, triton_option=options)


def groups_of(app) -> dict[str, str | None]:
    return {route.path: group_of(route) for route in all_routes(app)}


def test_every_route_has_a_group_or_is_a_page(world):
    """tritonserver's groups, by the routes that it has; /metrics has a port of its own there."""
    found = groups_of(world.app)

    outside = {path for path in found if error_form({"path": path, "headers": []}) != "kserve"}
    pages = {path for path, group in found.items() if group is None}
    assert pages == {
        "/", "/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css",
        "/favicon.ico", "/openapi.json", "/playground/{name}",
    }  # fmt: skip
    assert {group for group in found.values() if group} == {*GROUPS, "metrics"}
    assert {found[path] for path in outside - pages} == {*OPENAI_GROUPS, "metadata"}
    model = "/v2/models/{model}/versions/{version}"
    assert (found[model], found[f"{model}/ready"]) == ("metadata", "health")
    assert (found[f"{model}/infer"], found["/invocations"]) == ("inference", "inference")


def test_route_without_a_group_is_an_error():
    """It must not be reachable around a restriction."""

    class NewRoute(DirectRoute):
        scope = "admin"

    async def endpoint() -> None: ...

    with pytest.raises(LookupError):
        group_of(NewRoute("/v2/new", endpoint, methods=["GET"], response_model=None))


async def test_every_route_of_a_group_needs_its_header(world_of):
    """HEAD and a trailing slash too, and another group's header does not help."""
    world = await world_of(restricting(**{HTTP: EVERY}))
    groups = groups_of(world.app)
    wrong: list[Any] = []
    paths = {path.replace("{", "").replace(":path}", "").replace("}", ""): path for path in groups}

    for method, path, _ in addresses(world.app):
        group = groups[paths[path.rstrip("/")]]
        if group in (None, "metrics"):
            continue
        other = "trace" if group != "trace" else "logging"
        name = f"X-Secret-{group}"
        tries: Any = ({}, {name: f"canary-{other}"}, {f"x-secret-{other}": f"canary-{other}"})
        for headers in tries:
            answer = await world.client.request(method, path, headers=headers)
            expected = f"This API is restricted, expecting header '{name}'"
            found = method == "HEAD" or expected in answer.text
            if answer.status_code != 403 or not found:
                wrong.append((method, path, answer.status_code, answer.text))
        headers = {name.upper(): f"canary-{group}"}
        if "restricted" in (await world.client.request(method, path, headers=headers)).text:
            wrong.append((method, path, "refused"))

    assert wrong == []


async def test_kserves_form_is_that_of_tritonserver(world_of):
    world = await world_of(restricting(**{HTTP: ["health:Key=value"]}))
    answer = await world.client.get("/v2/health/live")
    open_ = await world.client.get("/v2")

    assert answer.status_code == 403
    assert answer.json() == {"error": "This API is restricted, expecting header 'Key'"}
    assert open_.status_code != 403


SENT = [
    ([("k", "va")], 403),
    ([("k", "value ")], 200),  # HTTP strips it
    ([("k", "value,value")], 403),
    ([("k", "value"), ("k", "x")], 200),
    ([("k", "x"), ("k", "value")], 403),  # the first one counts, as in tritonserver
    ([("kk", "value")], 403),
    ([("k", "")], 403),
    ([("k", "VALUE")], 403),
]


@pytest.mark.parametrize(("headers", "status"), SENT, ids=str)
async def test_value_is_compared_as_a_whole(world_of, headers, status):
    world = await world_of(restricting(**{HTTP: ["health:K=value"]}))
    stripped = [(name, value.strip()) for name, value in headers]

    answer = await world.client.get("/health/live", headers=stripped)

    assert answer.status_code == status


async def test_openai_option_covers_routes_outside_kserve(world_of):
    """With NVIDIA's status and form; KServe's routes stay open."""
    groups = "inference,model-repository,metrics,health"
    world = await world_of(restricting(**{OPENAI: [f"{groups}:admin-key=admin-value"]}))
    paths = ("/v1/models", "/metrics", "/health/ready", "/v2/health/live")
    got = {path: await world.client.get(path) for path in paths}
    chat = await world.chat()
    named = await world.client.get("/v1/models", headers={"admin-key": "admin-value"})

    assert [each.status_code for each in got.values()] == [401, 401, 401, 200]
    assert got["/v1/models"].json()["error"] == {
        "message": "This API is restricted, expecting header 'admin-key' with valid value",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_auth",
    }
    assert (chat.status_code, named.status_code) == (401, 200)


async def test_both_options_apply(world_of):
    """So that /invocations is no way around either."""
    options = {HTTP: ["inference:a=1"], OPENAI: ["inference:b=2"]}
    world = await world_of(restricting(**options))
    tries: Any = ({}, {"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"})
    got = [(await world.client.post("/invocations", headers=each)).status_code for each in tries]
    kserve = await world.client.post("/v2/models/m/infer", headers={"a": "1"})

    assert got[:3] == [403, 401, 403]
    assert got[3] not in (401, 403)
    assert kserve.status_code not in (401, 403)


async def test_restriction_is_on_top_of_keys(world_of):
    """The header opens nothing without a key, nor a key without the header."""
    options = {HTTP: ["model-repository:k=v"]}
    world = await world_of(Settings(api_key=["sk-a"], triton_option=options))
    tries: Any = ({"k": "v"}, bearer("sk-a"), {"k": "v", **bearer("sk-a")})
    got = [(await world.client.get("/v1/models", headers=each)).status_code for each in tries]

    assert got == [401, 403, 200]


async def test_unknown_paths_are_not_restricted(world_of):
    """They answer 404 and 405 as before."""
    world = await world_of(restricting(**{HTTP: EVERY}))

    assert (await world.client.get("/v2/nothing")).status_code == 404
    assert (await world.client.delete("/v2")).status_code == 405


@pytest.mark.parametrize("option", [HTTP, OPENAI])
async def test_errors_list_no_models_to_those_who_may_not_list_them(world_of, option):
    """The error about an unknown model would name them, as a restricted /v1/models does."""
    world = await world_of(restricting(**{option: ["model-repository:x-admin=canary"]}))
    body = {"model": "nobody", "prompt": "x"}

    def ask(**headers: str) -> Any:
        return world.client.post("/v1/completions", json=body, headers=headers)

    bare, allowed = await ask(), await ask(**{"x-admin": "canary"})

    assert (bare.status_code, allowed.status_code) == (404, 404)
    assert "No model is available." in allowed.text
    assert bare.json()["error"]["message"] == "The model 'nobody' does not exist."
