"""Anthropic's routes in the whole application: headers, errors, models, keys."""

from typing import Any

import pytest

from openai_frontend.config.settings import Settings
from openai_frontend.errors import InferenceFailed, QueueFull, ServerDraining
from openai_frontend.generation import CompletionDelta
from tests.fast.auth.key_files import bearer, key, write
from tests.message_rules import check_stream

VERSION = {"anthropic-version": "2023-06-01"}
HI = [{"role": "user", "content": "hi"}]


async def send(world: Any, path: str = "/v1/messages", **fields: Any) -> Any:
    body = {"model": "fake", "max_tokens": 9, "messages": HI, **fields}
    return await world.client.post(path, json=body)


async def test_message_is_answered(world):
    world.model()

    answer = await send(world, "/v1/messages?beta=true")

    message = answer.json()
    assert (answer.status_code, message["content"][0]["text"]) == (200, "Hello")
    assert message["id"].startswith("msg_")


async def test_message_is_streamed(world):
    world.model()

    answer = await send(world, stream=True)

    events = [event["type"] for event in check_stream(answer.content)]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (events[0], events[-2:]) == ("message_start", ["message_delta", "message_stop"])


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"max_tokens": 0}], ids=str)
async def test_request_id_has_the_name_of_this_api(world, fields):
    world.model()

    answer = await send(world, **fields)

    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    if answer.status_code == 400:
        assert answer.json()["request_id"] == answer.headers["request-id"]


async def test_count_is_that_of_the_prompt(world):
    model = world.model()
    body = {"model": "fake", "messages": HI}

    answer = await world.client.post("/v1/messages/count_tokens", json=body)

    assert (answer.json(), model.requests) == ({"input_tokens": 2}, [])


FAILURES = [
    (QueueFull("full"), 529, "overloaded_error"),
    (ServerDraining(), 503, "api_error"),
    (InferenceFailed("no"), 500, "api_error"),
]


@pytest.mark.parametrize(("failure", "status", "kind"), FAILURES, ids=str)
async def test_failure_has_anthropics_status_and_type(world, failure, status, kind):
    world.model([], failure=failure)

    answer = await send(world)

    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    assert ("retry-after" in answer.headers) == (status != 500)


async def test_failure_within_a_stream_is_its_last_event(world):
    world.model([[CompletionDelta("Hel")]], failure=InferenceFailed("no"))

    events = check_stream((await send(world, stream=True)).content)

    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["request_id"].startswith("req_")


async def test_models_have_anthropics_form_for_its_clients(world):
    """The header decides; without it they have OpenAI's."""
    world.model()

    answers = [
        (await world.client.get(path, headers=VERSION)).json()
        for path in ("/v1/models", "/v1/models/fake")
    ]
    plain = (await world.client.get("/v1/models")).json()

    model = {
        "type": "model",
        "id": "fake",
        "display_name": "fake",
        "created_at": "1970-01-01T00:00:01Z",
        "max_input_tokens": 64,
        "max_tokens": 64,
        "lifecycle": "active",
    }
    page = {"data": [model], "has_more": False, "first_id": "fake", "last_id": "fake"}
    assert answers == [page, model]
    assert plain["object"] == "list"


PAGES = [
    ("", "abcd", False),
    ("?limit=2", "ab", True),
    ("?limit=2&after_id=b", "cd", False),
    ("?limit=1&after_id=b", "c", True),
    ("?limit=2&before_id=d", "bc", True),
    ("?limit=9&before_id=c", "ab", False),
    ("?after_id=d", "", False),
]


@pytest.mark.parametrize(("query", "names", "more"), PAGES)
async def test_pages_of_models(world, query, names, more):
    for name in "abcd":
        world.model(name=name)

    page = (await world.client.get(f"/v1/models{query}", headers=VERSION)).json()

    assert ("".join(each["id"] for each in page["data"]), page["has_more"]) == (names, more)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "limit=²", "after_id=z"])
async def test_invalid_page_is_refused(world, query):
    answer = await world.client.get(f"/v1/models?{query}", headers=VERSION)

    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_unknown_model_is_not_found_in_anthropics_form(world):
    answer = await world.client.get("/v1/models/nope", headers=VERSION)

    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/api/hello", 404)])
async def test_probes_of_agents_are_answered(world, path, status):
    assert (await world.client.head(path)).status_code == status


async def test_scope_of_messages_opens_nothing_else(world_of, tmp_path):
    """`inference` opens these routes too."""
    scoped = key("narrow", scopes=frozenset({"messages"}))
    wide = key("wide", scopes=frozenset({"inference"}))
    world = await world_of(Settings(keys_file=write(tmp_path / "k.yaml", scoped, wide)))
    world.model()
    body = {"model": "fake", "max_tokens": 9, "messages": HI}
    paths = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"

    got = {
        secret: [
            (await world.client.post(path, json=body, headers={"x-api-key": secret})).status_code
            for path in paths
        ]
        for secret in ("narrow", "wide")
    }

    # a count has no maximum; it is an unknown field there, and ignored
    assert got == {"narrow": [200, 200, 403], "wide": [200, 200, 200]}


async def test_limits_of_a_key_count_messages(world_of, tmp_path):
    keys = write(tmp_path / "k.yaml", key("a", requests_per_minute=1))
    world = await world_of(Settings(keys_file=keys))
    world.model()
    body = {"model": "fake", "max_tokens": 9, "messages": HI}

    answers = [
        await world.client.post("/v1/messages", json=body, headers=bearer("a")) for _ in range(2)
    ]

    assert [each.status_code for each in answers] == [200, 429]
    assert answers[1].json()["error"]["type"] == "rate_limit_error"
    assert "retry-after" in answers[1].headers


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


TEXT = {"type": "text", "text": "x"}
BAD: dict[str, dict[str, Any]] = {
    "too many messages": {"messages": HI * 5000},
    "a deep schema": {"tools": [{"name": "f", "input_schema": deep(300)}]},
    "a deep output": {"output_config": {"format": {"type": "json_schema", "schema": deep(300)}}},
    "a deep block": {"messages": [{"role": "user", "content": [{"type": "x_tool_result",
                                                                "content": [deep(300)]}]}]},
    "blocks of numbers": {"messages": [{"role": "user", "content": [1, 2]}]},
    "a large number": {"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 2**70}}]}]},
    "a large number in a note": {"messages": [{"role": "user", "content": [
        {"type": "server_tool_use", "input": {"a": 2**70}}]}]},
    "no object": {"thinking": 7},
    "a note of anything": {"messages": [{"role": "assistant", "content": [
        {"type": "compaction", "content": {"a": [None]}}]}, *HI]},
    "a foreign source": {"messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "\u00e9", "data": "!"}}]}]},
    "only the assistant": {"messages": [{"role": "assistant", "content": ""}]},
}  # fmt: skip


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_bad_input_is_never_a_failure_of_the_server(world_of, path, fields):
    world = await world_of(Settings())
    world.model()

    answer = await send(world, path, **fields)

    assert answer.status_code in (200, 400)
