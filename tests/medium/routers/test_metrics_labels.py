"""Metrics labels contain no text that clients make up."""

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

NAMES = 112  # times nine addresses: a thousand requests
MESSAGES = [{"role": "user", "content": "Hello"}]

# Method and path, for an unknown name
ADDRESSES = [
    ("GET", "/v1/models/{}"),
    ("POST", "/v1/models/{}/load"),
    ("POST", "/v2/{}"),
    ("GET", "/{}"),
    ("{}", "/v1/chat/completions"),
]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "Hello"}),
    ("/v1/embeddings", {"input": "Hello"}),
    ("/tokenize", {"prompt": "Hello"}),
]


async def ask(world: Any, name: str) -> None:
    """Send one request to every address."""
    for method, path in ADDRESSES:
        answer = await world.client.request(method.format(name.upper()), path.format(name))
        assert 400 <= answer.status_code < 500
    for path, body in BODIES:
        answer = await world.client.post(path, json={"model": name, **body})
        assert answer.status_code == 404


async def series(world: Any) -> set[str]:
    accept = {"accept": "application/openmetrics-text"}
    text = (await world.client.get("/metrics", headers=accept)).text
    return {
        f"{sample.name}{sorted(sample.labels.items())}"
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_unknown_models_and_paths_add_no_metric_series(world):
    """A thousand requests for unknown names add no series to those of the first request."""
    world.model(name="known")
    await ask(world, "a0")
    await series(world)  # /metrics counts its own requests too
    before = await series(world)

    for number in range(1, NAMES):
        await ask(world, f"a{number}")

    assert await series(world) == before
    assert not [each for each in before if "a0" in each.lower()]
