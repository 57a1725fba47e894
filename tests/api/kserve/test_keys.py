"""What a key may do under /v2."""

import pytest

from tests.api.kserve.conftest import other_app
from tests.fast.auth import key_files
from tests.fast.auth.key_files import bearer, key

pytestmark = pytest.mark.asyncio(loop_scope="package")

PROMPT = {"text_input": "hi"}


KEYS = [
    key("free"),
    key("one", models=["one", "mock"]),
    key("counted", tokens_per_minute=100),
    key("last", priority=5),
    key("alone", isolate_prefix_cache=True),
    key("looks", scopes=frozenset({"models"})),
]


@pytest.fixture
def file(tmp_path):
    return key_files.write(tmp_path / "keys.yaml", *KEYS)


@pytest.mark.parametrize(
    ("name", "status"),
    [("free", 200), ("one", 200), ("counted", 403), ("last", 403), ("alone", 403),
     ("looks", 403), ("nobody", 401)],
)  # fmt: skip
async def test_keys_with_token_limits_cannot_infer(kserve, file, name, status):
    """Keys with token limits, a priority or an isolated cache get 403. Others work as allowed."""
    async with other_app(kserve, keys_file=file) as closed:
        path = "/v2/models/mock/generate"
        response = await closed.client.post(path, json=PROMPT, headers=bearer(name))

    assert response.status_code == status, response.text
    assert status == 200 or list(response.json()) == ["error"]


@pytest.mark.parametrize("path", ["", "/config", "/ready", "/stats", "/infer", "/generate"])
async def test_forbidden_models_look_absent(kserve, file, path):
    """A model that the key does not allow is reported as not found."""
    method = "POST" if path in ("/infer", "/generate") else "GET"
    async with other_app(kserve, keys_file=file, public_health=False) as closed:
        url = f"/v2/models/all{path}"
        response = await closed.client.request(method, url, json=PROMPT, headers=bearer("one"))

    assert response.status_code == 404, response.text


async def test_lists_show_only_the_keys_models(kserve, file):
    """The index and the statistics list only the models that the key allows."""
    async with other_app(kserve, keys_file=file) as closed:
        index = await closed.client.post("/v2/repository/index", headers=bearer("one"))
        statistics = await closed.client.get("/v2/models/stats", headers=bearer("one"))

    assert {entry["name"] for entry in index.json()} == {"one", "mock"}
    assert {each["name"] for each in statistics.json()["model_stats"]} == {"one", "mock"}


@pytest.mark.parametrize("name", ["one", "looks"])
async def test_unload_needs_permission(kserve, file, name):
    """A key without the scope, or without this model, cannot unload it."""
    async with other_app(kserve, keys_file=file, enable_model_management=True) as closed:
        path = "/v2/repository/models/all/unload"
        response = await closed.client.post(path, headers=bearer(name))

    assert response.status_code in (403, 404)
    assert kserve.server.model_is_ready("all")
