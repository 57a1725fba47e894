"""GET /, other requests that browsers make by themselves, and root paths."""

import pytest

from openai_frontend.config.settings import Settings
from tests.unit.auth.key_files import bearer, key, write


async def test_root_names_the_service_and_its_documentation(world):
    told = (await world.client.get("/")).json()

    assert (told["service"], told["docs"]) == ("openai-frontend", "/docs")


async def test_root_is_a_page_for_browsers(world):
    """It links to the documentation."""
    response = await world.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})

    assert response.headers["content-type"].startswith("text/html")
    assert '<a href="docs">' in response.text


async def test_every_link_of_the_root_works(world):
    told = (await world.client.get("/")).json()

    got = {
        path: (await world.client.get(path)).status_code
        for path in told.values()
        if path.startswith("/")
    }
    assert got == dict.fromkeys(("/docs", "/openapi.json", "/v1/models", "/health"), 200)


async def test_favicon_is_204(world):
    """There is no icon, and browsers show no error."""
    assert (await world.client.get("/favicon.ico")).status_code == 204


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ping"])
async def test_other_readiness_paths_answer_as_health_ready(starting, path):
    wanted = await starting.client.get("/health/ready")
    got = await starting.client.get(path)

    assert (got.status_code, got.text) == (503, wanted.text)


async def test_docs_with_a_slash_redirects_to_docs(world):
    """The page's relative links work only without the slash."""
    response = await world.client.get("/docs/")

    assert (response.status_code, response.headers["location"]) == (307, "../docs")


@pytest.fixture
async def proxied(world_of):
    """The application behind a proxy that serves it below /llm."""
    return await world_of(Settings(root_path="/llm/"))


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_every_path_works_with_and_without_the_root_path(proxied, prefix):
    """Some proxies remove it, others do not."""
    proxied.model()
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}

    got = [
        (await proxied.client.get(prefix + path)).status_code
        for path in ("/v1/models", "/v1/models/fake", "/health", "/docs", "/docs/start.js", "/")
    ]
    chat = await proxied.client.post(f"{prefix}/v1/chat/completions", json=body)

    assert [*got, chat.status_code] == [200] * 7


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_links_start_with_the_root_path(proxied, prefix):
    """In the OpenAPI document and on the front page."""
    document = (await proxied.client.get(f"{prefix}/openapi.json")).json()
    told = (await proxied.client.get(f"{prefix}/")).json()
    page = (await proxied.client.get(f"{prefix}/", headers={"accept": "text/html"})).text

    assert document["servers"] == [{"url": "/llm"}]
    assert (told["docs"], told["models"]) == ("/llm/docs", "/llm/v1/models")
    assert '<a href="/llm/docs">' in page


async def test_root_path_does_not_change_which_key_a_path_needs(world_of, tmp_path):
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
