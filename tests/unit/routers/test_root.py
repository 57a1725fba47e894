"""GET / and what else a browser asks for by itself."""

import pytest

from openai_frontend.config.settings import Settings
from tests.unit.auth.key_files import bearer, key, write


async def test_root_for_programs(world):
    """GET / names the service and where its documentation is."""
    told = (await world.client.get("/")).json()

    assert (told["service"], told["docs"]) == ("openai-frontend", "/docs")


async def test_root_for_browsers(world):
    """A browser gets a page that links to the documentation."""
    response = await world.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})

    assert response.headers["content-type"].startswith("text/html")
    assert '<a href="docs">' in response.text


async def test_every_link_of_the_root_answers(world):
    """What GET / names is there."""
    told = (await world.client.get("/")).json()

    got = {
        path: (await world.client.get(path)).status_code
        for path in told.values()
        if path.startswith("/")
    }
    assert got == dict.fromkeys(("/docs", "/openapi.json", "/v1/models", "/health"), 200)


async def test_favicon(world):
    """There is no icon, and that is no error."""
    assert (await world.client.get("/favicon.ico")).status_code == 204


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ping"])
async def test_other_names_of_readiness(starting, path):
    """They answer as /health/ready does."""
    wanted = await starting.client.get("/health/ready")
    got = await starting.client.get(path)

    assert (got.status_code, got.text) == (503, wanted.text)


async def test_slash_after_docs(world):
    """The page moves to its address without a slash, from which its relative links are right."""
    response = await world.client.get("/docs/")

    assert (response.status_code, response.headers["location"]) == (307, "../docs")


@pytest.fixture
async def proxied(world_of):
    """The application as a proxy serves it below /llm."""
    return await world_of(Settings(root_path="/llm/"))


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_root_path(proxied, prefix):
    """Every address answers, whether or not the proxy drops the path before it."""
    proxied.model()
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}

    got = [
        (await proxied.client.get(prefix + path)).status_code
        for path in ("/v1/models", "/v1/models/fake", "/health", "/docs", "/docs/start.js", "/")
    ]
    chat = await proxied.client.post(f"{prefix}/v1/chat/completions", json=body)

    assert [*got, chat.status_code] == [200] * 7


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_links_below_a_root_path(proxied, prefix):
    """The document's server and the links of the front page start with it."""
    document = (await proxied.client.get(f"{prefix}/openapi.json")).json()
    told = (await proxied.client.get(f"{prefix}/")).json()
    page = (await proxied.client.get(f"{prefix}/", headers={"accept": "text/html"})).text

    assert document["servers"] == [{"url": "/llm"}]
    assert (told["docs"], told["models"]) == ("/llm/docs", "/llm/v1/models")
    assert '<a href="/llm/docs">' in page


async def test_keys_below_a_root_path(world_of, tmp_path):
    """Each address needs the same key there as it does without."""
    keys = write(tmp_path / "keys.yaml", key("k", scopes=frozenset({"metrics"})))
    world = await world_of(Settings(keys_file=keys, root_path="/llm"))
    paths = ("/v1/models", "/metrics", "/health", "/llm/health", "/health/../v1/models")

    got = [
        [(await world.client.get(prefix + path, headers=headers)).status_code for path in paths]
        for prefix in ("", "/llm")
        for headers in ({}, bearer("k"))
    ]

    assert got[0] == [401, 401, 200, 200, 401]
    assert got[1] == [403, 200, 200, 200, 403]
    assert got[2] == [401, 401, 200, 401, 401]
    assert got[3] == [403, 200, 200, 404, 403]
