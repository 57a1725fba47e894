"""The client behaviours that break gateways, each as the request that the client sends.

| client | trap | shown by |
|---|---|---|
| aiperf | its runs, usage in every stream, `/metrics`, rankings | `test_aiperf.py` |
| aiperf | probes, `X-Request-ID`, `uuid` in a part, `object`, `ignore_eos` at the top | here |
| genai-perf | its runs, the list of one prompt | `test_genai_perf.py` |
| genai-perf | no empty `choices` by default, `data: ` with a space, one write per event | here |
| openai | parse, stream, base64, retries, context overflow | `test_openai.py`, `tests/api` |
| openai | no `tool_calls` without calls | here |
| LangChain | tiktoken's tokens, an empty text, `developer`, objects | `test_langchain.py` |
| LangChain | a switch to `/v1/responses`: comes with the Responses API | here: 404 today |
| llama-index | OpenAILike, line breaks | `test_llama_index.py` |
| llama-index | `max_model_len` for its context window | here |
| Vercel AI SDK | `/v1/responses` by default: comes with the Responses API | here: 404 today |
| Vercel AI SDK | json_object without a schema, the error's envelope | here |
| Open WebUI | the list of models, stray fields | here |
| Open WebUI | images, CORS and audio: come later | here: a named refusal today |
| Continue | long `stop` lists, `api-key`, a space as content, `suffix`, raw prompts | here |
| Continue | a fast end at a disconnect | `tests/api/test_faults.py` |
| instructor | its modes, those with tools too | `test_instructor.py` |
| OpenAI's, NeMo's guardrails | `omni-moderation-latest`, checks by chats | `test_guardrails.py` |
| Codex | `/v1/responses` | `tests/api/routers/test_responses.py` |
| pi, opencode, Qwen Code | `/v1/messages` | `test_agents.py` |
| Anthropic's SDK | `/v1/messages` | `tests/api/test_anthropic_sdk.py` |
"""

import json
import socket
from functools import partial
from typing import Any

import httpx
import pytest

from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
def post(gateway: GatewayProcess):
    """Posts a short chat with these additional fields and returns the raw response."""

    def send(path: str = CHAT, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body = {"model": "demo", "max_tokens": 4, "messages": HELLO, **fields}
        body = {name: value for name, value in body.items() if value is not None}
        return httpx.post(f"{gateway.url}{path}", json=body, headers=headers, timeout=60)

    return send


def events(response: httpx.Response) -> list[str]:
    """The data of a stream's events."""
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


def test_probe_of_one_token_is_answered(post):
    """aiperf waits for a model with a non-streaming chat of one token."""
    answer = post(max_tokens=None, max_completion_tokens=1, stream=False)

    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 1)


def test_callers_request_id_is_returned(post):
    """aiperf joins its records by the X-Request-ID that it sent; X-Correlation-ID is ignored."""
    answer = post(headers={"X-Request-ID": "run-7", "X-Correlation-ID": "c"})

    assert answer.headers["x-request-id"] == "run-7"


@pytest.mark.parametrize(
    ("path", "fields", "whole", "part"),
    [
        (CHAT, {}, "chat.completion", "chat.completion.chunk"),
        (
            "/v1/completions",
            {"messages": None, "prompt": "a"},
            "text_completion",
            "text_completion",
        ),
    ],
)
def test_object_fields_are_exact(post, path, fields, whole, part):
    """aiperf drops an answer, and genai-perf a run, with any other `object`."""
    found = {json.loads(data)["object"] for data in events(post(path, stream=True, **fields))[:-1]}

    assert (post(path, **fields).json()["object"], found) == (whole, {part})


def test_usage_has_details(post):
    """aiperf reads cached_tokens and reasoning_tokens below the counts."""
    usage = post().json()["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_ignore_eos_at_the_top_of_the_body(post):
    """aiperf's scenarios force a length with ignore_eos, which is not an OpenAI field."""
    answer = post(ignore_eos=True, max_tokens=200)

    assert answer.json()["usage"]["completion_tokens"] == 200


def test_uuid_next_to_a_content_part_is_accepted(post):
    """aiperf may add a uuid to a content part."""
    content = [{"type": "text", "text": "Hello!", "uuid": "u-1"}]

    assert post(messages=[{"role": "user", "content": content}]).status_code == 200


def test_image_is_refused_by_its_type(post):
    """By a model of text: the error names the part's type, not its uuid or detail."""
    image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}, "uuid": "u-1"}
    answer = post(messages=[{"role": "user", "content": [image]}])

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[0].content[0].type")


def test_every_event_has_a_choice_by_default(post):
    """genai-perf reads choices[0] of every event."""
    chunks = [json.loads(data) for data in events(post(stream=True))[:-1]]

    assert [len(chunk["choices"]) for chunk in chunks] == [1] * len(chunks)


def test_each_event_is_a_line_of_data(post):
    """genai-perf expects `data: ` with its space, no name, no comment, and [DONE] at the end."""
    lines = post(stream=True).text.split("\n\n")

    assert [line[:6] for line in lines[:-1]] == ["data: "] * (len(lines) - 1)
    assert lines[-2:] == ["data: [DONE]", ""]


def test_each_read_ends_with_an_event(gateway):
    """No event is split over two writes: each read from the socket ends at the end of an event.

    On a busy machine all events can arrive before this process reads: it tries some responses.
    """
    fields = {"stream": True, "max_tokens": 200, "ignore_eos": True}
    body = json.dumps({"model": "demo", "messages": HELLO, **fields})
    lines = [f"POST {CHAT} HTTP/1.1", "host: localhost", "connection: close"]
    head = "\r\n".join([*lines, "content-type: application/json"])
    host, port = gateway.url.removeprefix("http://").split(":")
    ends: list[bytes] = []
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
            reads = list(iter(partial(connection.recv, 1 << 20), b""))
        ends = [read[-40:] for read in reads if b"data: " in read]
        # An HTTP chunk ends with its own line break after the event's two.
        assert [end for end in ends if not end.endswith((b"\n\n\r\n", b"\r\n0\r\n\r\n"))] == []
        if len(ends) > 3:
            break
    assert len(ends) > 3


def test_tool_calls_is_absent_without_calls(post):
    """An empty list of tool_calls confuses clients; openai accepts either."""
    assert not post().json()["choices"][0]["message"].get("tool_calls")


def test_context_length_is_listed(gateway):
    """Users of llama-index read their context_window from /v1/models."""
    listed = httpx.get(f"{gateway.url}/v1/models").json()["data"]

    assert {model["id"]: model.get("max_model_len") for model in listed}["demo"] == 2048


def test_json_object_needs_no_schema(post):
    """Vercel's compatible provider drops the schema and requests a json_object."""
    question = "Give me a JSON object with name Alice and age 30."
    answer = post(
        messages=[{"role": "user", "content": question}], temperature=0, max_tokens=60,
        response_format={"type": "json_object"},
    )  # fmt: skip

    assert json.loads(answer.json()["choices"][0]["message"]["content"])["name"] == "Alice"


def test_errors_are_nested(post):
    """openai-node and Vercel read strings below `error` only."""
    error = post(temperature=9).json()["error"]

    assert {name: type(error[name]) for name in ("message", "type", "param")} == dict.fromkeys(
        ("message", "type", "param"), str
    )
    assert isinstance(error["code"], str | None)


def test_open_webuis_stray_fields_are_accepted(post):
    """Its releases have leaked internal fields into requests."""
    answer = post(
        chat_id="c", id="m", session_id="s", stream_response=False, features={"web": False},
        metadata={"task": "title_generation"}, background_tasks={"title": True},
    )  # fmt: skip

    assert answer.status_code == 200


def test_every_listed_model_has_an_id(gateway):
    """Open WebUI shows data[].id, and verifies the URL by it."""
    listed = httpx.get(f"{gateway.url}/v1/models").json()

    assert (listed["object"], all(model["id"] for model in listed["data"])) == ("list", True)


def test_many_stop_strings_are_accepted(post):
    """Editors send more than OpenAI's four, and each applies."""
    stops = [f"<stop {i}>" for i in range(15)] + ["4"]
    question = [{"role": "user", "content": "Count to 7"}]
    answer = post(messages=question, stop=stops, temperature=0, max_tokens=60)

    text = answer.json()["choices"][0]["message"]["content"]
    assert ("3" in text, "4" in text) == (True, False)


@pytest.mark.parametrize("name", ["api-key", "x-api-key"])
def test_azures_key_header_is_accepted(post, name):
    """Continue sends its key twice; Anthropic's clients use another header."""
    assert post(headers={name: "k", "authorization": "Bearer k"}).status_code == 200


def test_space_is_valid_content(post):
    """Continue sends a space for an empty message."""
    assert post(messages=[{"role": "user", "content": " "}]).status_code == 200


def test_unsupported_suffix_is_named(post):
    """Void sends `suffix`; without fill-in-the-middle tokens, the error names the field."""
    answer = post("/v1/completions", messages=None, prompt="def f(", suffix="return 1")

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")


def test_raw_prompt_is_unchanged(post):
    """Continue writes a model's own tokens into a prompt: no template is applied."""
    plain = post("/v1/completions", messages=None, prompt="Triton is", temperature=0)
    ids = post("/tokenize", messages=None, prompt="Triton is", max_tokens=None).json()["tokens"]
    same = post("/v1/completions", messages=None, prompt=ids, temperature=0)

    assert plain.json()["choices"][0]["text"] == same.json()["choices"][0]["text"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fim/completions",
    ],
)
def test_future_endpoint_is_not_found(post, path):
    """It gets a 404 in OpenAI's envelope that names the path."""
    answer = post(path)

    assert answer.status_code == 404
    assert path in answer.json()["error"]["message"]
