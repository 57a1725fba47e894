"""GET / and what else a browser asks for by itself."""

import pytest


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
