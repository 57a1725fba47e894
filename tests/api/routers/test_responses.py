"""/v1/responses by OpenAI's SDK and raw: a stream's fold equals the whole answer, and failures.

Every stream is also checked by `tests/response_rules.py`, as in all tests.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import mock_models
from tests.api.routers.test_scripted_model import call
from tests.coding_agents import recording
from tests.gateway_process import GatewayProcess

SEEN = "<think>\nI look outside. 😀\n</think>\n\nLet me see."
TURNS: list[dict[str, Any]] = [
    {"contains": "weather", "after": 0, "text": SEEN + call("weather", city="Oslo")},
    {"contains": "weather", "after": 1, "text": "It is sunny in Oslo."},
    {"contains": "patch", "text": call("patch", input="*** Begin\n+ä 😀\n")},
    {"contains": "server", "text": call("fs__read", path="a") + call("tool_search", query="x")},
    {"contains": "two", "text": SEEN + call("weather", city="Oslo") + call("now")},
    {"contains": "nothing", "text": ""},
    {"text": "Hello there. " * 20},
]
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "text"}}
SPACE = {
    "type": "namespace",
    "name": "fs",
    "description": "Files",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("responses")
    mock_models.write_with_turns(folder / "models", "demo", TURNS, prefix_cache_blocks=4096)
    mock_models.write_with_tokenizer(folder / "models", "fails", fail_after_tokens=3)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    url = f"{gateway.url}/v1"
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=60) as made:
        yield made


def plain(items: Any) -> Any:
    """Without ids, which differ by response, and without the SDK's own members."""
    if isinstance(items, list):
        return [plain(each) for each in items]
    if not isinstance(items, dict):
        return items
    left_out = ("id", "call_id", "parsed", "parsed_arguments")
    return {name: plain(value) for name, value in items.items() if name not in left_out}


def dumped(response: Any) -> list[dict[str, Any]]:
    return [item.model_dump() for item in response.output]


def both(client: openai.OpenAI, **asked: Any) -> Any:
    """The whole answer, after the fold of the stream was compared with it."""
    whole = client.responses.create(model="demo", **asked)
    with client.responses.stream(model="demo", **asked) as events:
        folded = events.get_final_response()
    assert plain(dumped(folded)) == plain(dumped(whole))
    assert (folded.status, folded.usage.output_tokens) == (whole.status, whole.usage.output_tokens)
    return whole


ASKED: list[tuple[dict[str, Any], list[str]]] = [
    ({"input": "Hello"}, ["message"]),
    ({"input": "nothing"}, ["message"]),
    ({"input": "the weather?", "tools": [WEATHER]}, ["reasoning", "message", "function_call"]),
    (
        {"input": "the weather?", "tools": [WEATHER], "reasoning": {"summary": "auto"}},
        ["reasoning", "message", "function_call"],
    ),
    ({"input": "a patch", "tools": [PATCH]}, ["custom_tool_call"]),
    (
        {"input": "two", "tools": [WEATHER], "parallel_tool_calls": False},
        ["reasoning", "message", "function_call"],
    ),
    ({"input": "the server", "tools": [SPACE, SEARCH]}, ["function_call", "tool_search_call"]),
    (
        {
            "input": "the weather?",
            "tools": [WEATHER],
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
        },
        ["reasoning", "message", "function_call"],
    ),
]


@pytest.mark.parametrize(("asked", "kinds"), ASKED)
def test_fold_of_a_stream_equals_the_whole_answer(client, asked, kinds):
    whole = both(client, **asked)
    assert [item.type for item in whole.output] == kinds
    assert whole.status == "completed"


def test_an_agents_rounds_end_with_the_answer(client):
    """The items of the first answer are sent back as they came, with the result of the call."""
    tools = [WEATHER]
    first = both(client, input="the weather?", tools=tools, include=["reasoning.encrypted_content"])
    *_, called = first.output
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "sunny"}
    items: Any = [{"role": "user", "content": "the weather?"}, *dumped(first), result]

    second = both(client, input=items, tools=tools)

    assert json.loads(called.arguments) == {"city": "Oslo"}
    assert second.output_text == "It is sunny in Oslo."
    assert second.usage.input_tokens_details.cached_tokens > 0.5 * first.usage.input_tokens


def test_calls_have_the_names_of_the_request(client):
    read, search = both(client, input="the server", tools=[SPACE, SEARCH]).output

    assert (read.name, read.namespace, json.loads(read.arguments)) == ("read", "fs", {"path": "a"})
    assert (search.arguments, search.execution) == ({"query": "x"}, "client")


def test_custom_tool_gets_its_text(client):
    [patch] = both(client, input="a patch", tools=[PATCH]).output
    assert (patch.name, patch.input) == ("patch", "*** Begin\n+ä 😀\n")


@pytest.mark.parametrize("summary", [None, "detailed"])
def test_reasoning_is_content_or_summary(client, summary):
    asked = {"summary": summary}
    reasoning = both(client, input="the weather?", tools=[WEATHER], reasoning=asked).output[0]

    shown = reasoning.content if summary is None else reasoning.summary
    assert [part.text for part in shown] == ["I look outside. 😀"]
    assert not (reasoning.summary if summary is None else reasoning.content)


def test_log_probabilities_are_those_of_the_text(client):
    _, message, _ = both(
        client, input="the weather?", tools=[WEATHER], include=["message.output_text.logprobs"]
    ).output
    [part] = message.content
    assert b"".join(bytes(each.bytes) for each in part.logprobs).decode() == part.text


def raw(gateway: GatewayProcess, **body: Any) -> httpx.Response:
    asked = {"model": "demo", **body}
    return httpx.post(f"{gateway.url}/v1/responses", json=asked, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
def test_output_that_is_cut_is_incomplete(gateway, stream):
    answer = raw(gateway, input="Hello", max_output_tokens=5, stream=stream)
    if stream:
        *_, last, _, _ = answer.text.split("\n\n")
        assert last.startswith("event: response.incomplete\n")
        response = json.loads(last.split("data: ")[1])["response"]
    else:
        response = answer.json()
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["incomplete"]


def test_failure_within_a_stream_is_told_in_both_forms(gateway):
    *_, error, failed, done, _ = raw(gateway, model="fails", input="x", stream=True).text.split(
        "\n\n"
    )

    assert error.startswith("event: error\n")
    assert failed.startswith("event: response.failed\n")
    told, response = (json.loads(each.split("data: ")[1]) for each in (error, failed))
    assert told["message"] == told["error"]["message"] == response["response"]["error"]["message"]
    assert response["response"]["status"] == "failed"
    assert done == "data: [DONE]"


def test_openai_python_raises_the_failure(client):
    with pytest.raises(openai.APIError, match="server had an error"):
        list(client.responses.create(model="fails", input="x", stream=True))


def test_response_repeats_the_request_with_the_values_in_force(gateway):
    answer = raw(
        gateway, input="Hello", instructions="Be brief.", temperature=0.5, metadata={"a": "b"},
        tools=[WEATHER, {"type": "web_search"}], store=True, service_tier="flex",
        reasoning={"effort": "high"}, prompt_cache_key="key",
    )  # fmt: skip
    response = answer.json()

    assert (response["temperature"], response["top_p"], response["store"]) == (0.5, 1.0, False)
    assert (response["instructions"], response["metadata"]) == ("Be brief.", {"a": "b"})
    assert [tool["type"] for tool in response["tools"]] == ["function"]
    assert (response["service_tier"], response["prompt_cache_key"]) == ("flex", "key")
    adjusted = answer.headers["x-adjusted-parameters"]
    assert "tools.web_search=ignored" in adjusted
    assert "reasoning.effort=ignored" in adjusted
    assert response["reasoning"]["effort"] is None


def test_input_tokens_equal_those_of_the_answer(gateway, client):
    asked: Any = {
        "model": "demo",
        "input": "Hello",
        "instructions": "Be brief.",
        "tools": [WEATHER],
    }

    counted = client.responses.input_tokens.count(**asked)

    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == client.responses.create(**asked).usage.input_tokens


RECORDED = sorted(path.stem for path in recording.FOLDER.glob("*-responses*.json"))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_requests_of_coding_agents_are_answered(gateway, name):
    """As they were sent, with their headers' protocol left out."""
    for request in recording.requests(name):
        if request["path"] == "/v1/responses":
            answer = raw(gateway, **{**request["body"], "model": "demo"})
            assert (answer.status_code, answer.text[:24]) == (200, "event: response.created\n")


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
def test_nothing_is_stored(gateway, path):
    stored = httpx.get(f"{gateway.url}/v1/responses/resp_1{path}")
    assert (stored.status_code, stored.json()["error"]["code"]) == (404, "unknown_url")
