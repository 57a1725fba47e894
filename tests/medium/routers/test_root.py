"""GET /, other requests that browsers make by themselves, and root paths."""

import re
import sys
from pathlib import Path

import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.routers import docs, root
from tests.fast.auth.key_files import bearer, key, write

BROWSER = {"accept": "text/html,*/*;q=0.8"}


async def test_root_names_the_service_and_its_documentation(world):
    told = (await world.client.get("/")).json()

    assert (told["service"], told["docs"]) == ("openai-frontend", "/docs")


async def test_root_is_a_page_for_browsers(world):
    """It links to the documentation."""
    response = await world.client.get("/", headers=BROWSER)

    assert response.headers["content-type"].startswith("text/html")
    assert '<a href="docs">' in response.text


async def test_every_file_of_the_page_is_served(world):
    """With the type that a browser requires of scripts and styles, and the policy of the page."""
    policy = (await world.client.get("/", headers=BROWSER)).headers["content-security-policy"]
    responses = {name: await world.client.get(f"/playground/{name}") for name in root.FILES}

    assert set(responses) == {
        path.name for path in root.FOLDER.iterdir() if path.name != "index.html"
    }
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for name, response in responses.items():
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(types[Path(name).suffix])
        assert response.headers["content-security-policy"] == policy


def test_page_is_small_and_has_neither_markup_from_texts_nor_other_hosts():
    """No inline script or style, no function that parses markup, no address of another host."""
    contents = {path.name: path.read_text() for path in root.FOLDER.iterdir()}

    assert sum(len(each.encode()) for each in contents.values()) < 150_000
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    inline = r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+="
    for name, content in contents.items():
        assert not re.search(markup, content), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", content), name
    assert not re.search(inline, contents["index.html"])


@pytest.mark.parametrize("name", ["absent.js", "..%2froot.py", "index.html", "%2e%2e/root.py"])
async def test_other_paths_below_the_page_are_404(world, name):
    """No folder is served."""
    assert (await world.client.get(f"/playground/{name}")).status_code == 404


async def test_page_costs_nothing_until_a_browser_asks_for_it(world_of, monkeypatch, tmp_path):
    """The application starts and answers without its files, and without those of Swagger UI, whose
    package is never imported.
    """
    monkeypatch.setattr(root, "FOLDER", tmp_path / "absent")
    monkeypatch.setattr(docs, "distribution", lambda name: pytest.fail(f"{name} was looked for"))
    world = await world_of(Settings())

    assert (await world.client.get("/")).json()["service"] == "openai-frontend"
    assert (await world.client.get("/v1/models")).status_code == 200
    assert (await world.client.get("/docs")).status_code == 200
    assert "fastapi_offline" not in sys.modules


async def test_without_pages_there_is_only_json(world_of):
    """The OpenAPI document stays."""
    world = await world_of(Settings(web_pages="none"))
    page = await world.client.get("/", headers=BROWSER)
    paths = ("/docs", "/docs/start.js", "/playground/page.js", "/openapi.json")

    assert page.headers["content-type"] == "application/json"
    assert "docs" not in page.json()
    assert [(await world.client.get(path)).status_code for path in paths] == [404, 404, 404, 200]


@pytest.mark.parametrize("path", ["/llm", "/llm/", "/"])
async def test_links_of_the_page_start_with_the_root_path(proxied, path):
    """Relative links would break at the root path without a slash."""
    page = (await proxied.client.get(path, headers=BROWSER)).text
    links = set(re.findall(r'(?:href|src)="([^#"]+)"', page))

    assert links == {
        "/llm/docs", *(f"/llm/playground/{name}" for name in ("icon.svg", "page.css", "page.js"))
    }  # fmt: skip


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
    """In the OpenAPI document and in the answer for clients."""
    document = (await proxied.client.get(f"{prefix}/openapi.json")).json()
    told = (await proxied.client.get(f"{prefix}/")).json()

    assert document["servers"] == [{"url": "/llm"}]
    assert (told["docs"], told["models"]) == ("/llm/docs", "/llm/v1/models")


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


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/start.js", "/playground/page.js"])
async def test_pages_are_public_and_contain_no_data(world_of, tmp_path, path):
    """The same bytes without a key, with a wrong one and with a right one."""
    file = write(tmp_path / "keys.yaml", key("a"))
    world = await world_of(Settings(keys_file=file))
    world.model()
    pages = [
        await world.client.get(path, headers={**BROWSER, **headers})
        for headers in ({}, bearer("wrong"), bearer("a"))
    ]

    assert {each.status_code for each in pages} == {200}
    assert len({each.content for each in pages}) == 1
    assert b"fake" not in pages[0].content


async def test_document_needs_a_key_unless_it_is_public(world_of, tmp_path):
    file = write(tmp_path / "keys.yaml", key("a"))
    statuses = [
        (
            await (await world_of(Settings(keys_file=file, web_pages=pages))).client.get(path)
        ).status_code
        for pages in ("private", "public")
        for path in ("/openapi.json", "/v1/models")
    ]

    assert statuses == [401, 401, 200, 401]
