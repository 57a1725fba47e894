"""Features of openai-python beyond `tests/api`: async, parse, events, raw responses, retries."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests import mock_models
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.engine

QUESTION: list[Any] = [{"role": "user", "content": "What is Triton?"}]
ALICE: list[Any] = [
    {"role": "user", "content": "Give me a JSON object with name Alice and age 30."}
]
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}


class Person(BaseModel):
    name: Literal["Alice"]
    age: Literal[30]


class Colour(BaseModel):
    name: Literal["red", "blue"]


class Wardrobe(BaseModel):
    """All that the SDK writes into a schema: $ref, anyOf with null, const, an array."""

    model_config = ConfigDict(extra="forbid")

    shirt: Colour
    hat: Colour | None
    size: Literal["M"]
    sold: bool


class GetWeather(BaseModel):
    """Tells the weather."""

    city: Literal["Oslo", "Lima"]
    days: Literal[1, 2]


class GetTime(BaseModel):
    """Tells the time."""

    city: Literal["Oslo", "Lima"]


TOOLS = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(GetTime)]
CHOICES: list[tuple[Any, set[str]]] = [
    ("required", {"GetWeather", "GetTime"}),
    ({"type": "function", "function": {"name": "GetTime"}}, {"GetTime"}),
    ({"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "GetWeather"}}]}},
     {"GetWeather"}),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "names"), CHOICES)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_parse_returns_the_tools_objects(client, choice, names, temperature):
    """`.parse()` with strict tools returns each required call as the pydantic model's object."""
    completion = client.chat.completions.parse(
        model="demo",
        messages=QUESTION,
        tools=TOOLS,
        tool_choice=choice,
        temperature=temperature,
        seed=7,
        parallel_tool_calls=False,
    )

    [call] = completion.choices[0].message.tool_calls
    assert call.function.name in names
    assert isinstance(call.function.parsed_arguments, GetWeather | GetTime)


def test_stream_returns_the_tools_objects(client):
    """`.stream()` reports arguments as they arrive, and accumulates to the result of `.parse()`."""
    asked: dict[str, Any] = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required",
                             "parallel_tool_calls": False, **GREEDY}  # fmt: skip

    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    [whole] = client.chat.completions.parse(**asked).choices[0].message.tool_calls

    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert streamed.function.parsed_arguments == whole.function.parsed_arguments


def test_parse_returns_an_object(client):
    """`.parse()` sends a strict json_schema and returns the pydantic model."""
    completion = client.chat.completions.parse(messages=ALICE, response_format=Person, **GREEDY)

    assert completion.choices[0].message.parsed == Person(name="Alice", age=30)


def test_parse_supports_references_unions_and_constants(client):
    """A nested schema with $defs, null and const holds, whatever the model would generate."""
    completion = client.chat.completions.parse(
        messages=ALICE, response_format=Wardrobe, max_tokens=200, **GREEDY
    )

    message = completion.choices[0].message
    assert isinstance(message.parsed, Wardrobe)
    assert list(message.parsed.model_dump()) == list(Wardrobe.model_fields)


def test_parse_keeps_the_order_of_properties(client):
    """The answer's keys have the order of the schema."""
    text = client.chat.completions.parse(
        messages=ALICE, response_format=Wardrobe, max_tokens=200, **GREEDY
    ).choices[0].message.content  # fmt: skip

    places = [text.index(f'"{name}"') for name in Wardrobe.model_fields]
    assert places == sorted(places)


def test_truncated_object_raises_the_sdks_error(client):
    """An answer with finish_reason length raises the SDK's LengthFinishReasonError."""
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            messages=ALICE, response_format=Person, max_tokens=2, **GREEDY
        )


def test_stream_parses_to_the_same_object(client):
    """`.stream()` with a response_format parses the accumulated text."""
    with client.chat.completions.stream(messages=ALICE, response_format=Person, **GREEDY) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed

    assert parsed == Person(name="Alice", age=30)


def test_helper_events_are_in_order(client):
    """Content deltas, one content.done with the complete text, and a chunk event per chunk."""
    with client.chat.completions.stream(messages=QUESTION, **GREEDY) as stream:
        events = list(stream)

    deltas = [event.delta for event in events if event.type == "content.delta"]
    done = [event.content for event in events if event.type == "content.done"]
    assert done == ["".join(deltas)]
    assert len(deltas) > 5


def test_helper_returns_usage_on_request(client):
    """With include_usage, the final completion has the stream's counts."""
    with client.chat.completions.stream(
        messages=QUESTION, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        usage = stream.get_final_completion().usage

    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


def test_helper_separates_choices(client):
    """n=3 through `.stream()` gives three complete messages."""
    with client.chat.completions.stream(messages=QUESTION, n=3, **GREEDY) as stream:
        choices = stream.get_final_completion().choices

    texts = [choice.message.content for choice in choices]
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert texts == [texts[0]] * 3


def test_async_client_gives_the_same(url):
    """AsyncOpenAI: a complete answer and a stream agree."""

    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(messages=QUESTION, **GREEDY)
            chunks = await client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
            return whole.choices[0].message.content, text

    whole, streamed = asyncio.run(ask())

    assert streamed == whole


def test_response_has_the_request_id(client):
    """A raw response has x-request-id, and the object has it as _request_id."""
    raw = client.chat.completions.with_raw_response.create(
        messages=QUESTION, max_tokens=1, **GREEDY
    )

    assert raw.headers["x-request-id"] == raw.parse()._request_id != ""


def test_error_has_the_request_id(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")

    assert caught.value.request_id
    assert caught.value.code == "model_not_found"


def test_embeddings_are_requested_in_base64(client):
    """The SDK's default returns floats of norm 1 that equal those requested as floats."""
    default = client.embeddings.create(model="minilm", input="A cat sleeps.")
    floats = client.embeddings.create(
        model="minilm", input="A cat sleeps.", encoding_format="float"
    )

    vector = default.data[0].embedding
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-4)
    assert vector == pytest.approx(floats.data[0].embedding, abs=1e-6)


def test_embeddings_keep_the_order_of_a_list(client):
    """Each input of a list gets its own vector, at its index."""
    texts = ["A cat sleeps.", "Rates rose by a point.", "A cat sleeps."]

    data = client.embeddings.create(model="minilm", input=texts).data

    vectors = [item.embedding for item in data]
    assert [item.index for item in data] == [0, 1, 2]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)


def test_every_listed_model_can_be_retrieved(client):
    names = [model.id for model in client.models.list()]

    assert {"demo", "minilm"} <= set(names)
    assert [client.models.retrieve(name).id for name in names] == names


def test_streamed_prompts_have_their_index(client):
    """A list of prompts streams choices with prompt-major indexes."""
    chunks = client.completions.create(
        prompt=["Triton is", "The gateway"], n=2, max_tokens=4, stream=True, **GREEDY
    )

    texts = ["", "", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert (texts[0] == texts[1], texts[2] == texts[3], "" in texts) == (True, True, False)


def counting_client(
    url: str, sent: list[str], seen: Callable[[int], None] = lambda status: None, **options: Any
) -> openai.OpenAI:
    """Records each request in `sent`, and passes each response's status to `seen`."""
    hooks: dict[str, Any] = {
        "request": [lambda request: sent.append(request.url.path)],
        "response": [lambda response: seen(response.status_code)],
    }
    http = httpx2.Client(event_hooks=hooks)
    return openai.OpenAI(base_url=url, api_key="none", http_client=http, **options)


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        ({"model": "failing"}, openai.InternalServerError),
        ({"model": "nobody"}, openai.NotFoundError),
        ({"model": "demo", "temperature": 9}, openai.BadRequestError),
    ],
)
def test_failed_inference_is_not_retried(url, request_fields, error):
    """A failed inference has x-should-retry: false, so the SDK sends it once, like a 4xx."""
    sent: list[str] = []
    with counting_client(url, sent, max_retries=2) as client, pytest.raises(error):
        client.chat.completions.create(messages=QUESTION, **request_fields)

    assert sent == ["/v1/chat/completions"]


def test_overloaded_server_is_retried(tmp_path):
    """A 503 has retry-after, and the SDK's retry succeeds once there is capacity."""
    mock_models.write_with_tokenizer(tmp_path / "models", "m", tokens_per_second=20)
    options = ("--max-concurrent-requests=1", "--max-queue-size=0")
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as gateway:
        gateway.wait_until_ready()
        url, sent = f"{gateway.url}/v1", list[str]()
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as other:
            held = other.completions.create(model="m", prompt="a", max_tokens=4000, stream=True)
            first = next(iter(held))

            def make_room(status: int) -> None:
                if status == 503:
                    held.close()

            with counting_client(url, sent, make_room, max_retries=4) as client:
                second = client.completions.create(model="m", prompt="a", max_tokens=1)

    assert (first.object, second.choices[0].text) == ("text_completion", " token")
    assert len(sent) > 1
