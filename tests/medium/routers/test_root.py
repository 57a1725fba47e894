"""GET /, other requests that browsers make by themselves, and root paths."""

import base64
import hashlib
import re

import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.errors import ModelUnavailable
from tests.fast.auth.key_files import bearer, key, write


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


BROWSER = {"accept": "text/html,*/*;q=0.8"}


async def test_page_lists_the_models_with_their_state(world):
    """It has no scripts and loads nothing; its policy allows only its own style."""
    world.model()
    response = await world.client.get("/", headers=BROWSER)

    assert "<td><code>fake</code></td><td>ready</td>" in response.text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    style = response.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert not re.search(r"<script|style=|src=|https?:", response.text)


async def test_page_before_the_models_are_loaded(starting, monkeypatch):
    """It says so."""

    def cards() -> None:
        raise ModelUnavailable("The models are still loading.")

    monkeypatch.setattr(starting.registry, "cards", cards)
    response = await starting.client.get("/", headers=BROWSER)

    assert (response.status_code, "still loading" in response.text) == (200, True)


async def test_page_shows_models_only_with_a_key_if_there_are_keys(world_of, tmp_path):
    """Also a key that may not list models sees none."""
    file = write(tmp_path / "keys.yaml", key("a"), key("blind", scopes=["inference"]))
    world = await world_of(Settings(keys_file=file))
    world.model()
    pages = [
        (await world.client.get("/", headers={**BROWSER, **headers})).text
        for headers in ({}, bearer("wrong"), bearer("blind"), bearer("a"))
    ]

    assert ["fake" in page for page in pages] == [False, False, False, True]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_browser_without_a_key_reads_how_to_open_the_documentation(world_of, tmp_path, path):
    """The status and the headers are those of other refusals; clients get JSON."""
    world = await world_of(Settings(keys_file=write(tmp_path / "keys.yaml", key("a"))))
    page = await world.client.get(path, headers=BROWSER)
    plain = await world.client.get(path)
    api = await world.client.get("/v1/models", headers=BROWSER)

    assert [each.status_code for each in (page, plain, api)] == [401, 401, 401]
    assert "--public-docs" in page.text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["www-authenticate"] == plain.headers["www-authenticate"]
    assert plain.json()["error"] == api.json()["error"]
