"""Images in conversations, for chats, embeddings and tokens: what arrives at the engine, in which
order, and what the response counts. The engine is a mock that describes the images it got.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import images, mock_models
from tests.docs.documented_commands import BLOCK
from tests.fast.prompting import tiny_tokenizer
from tests.gateway_process import ROOT, GatewayProcess

honours, accepts, refuses = pytest.mark.honours, pytest.mark.accepts, pytest.mark.refuses
USER = "chat.messages.user.content.image_url"

PNG, JPEG, GIF = images.png(4, 5), images.jpeg(6, 7), images.gif(8, 9)
WRITER = "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ flavour }}"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """`vision` describes its images; `writer` has none, and its template writes the messages."""
    folder = tmp_path_factory.mktemp("images")
    mock_models.write_with_images(folder / "models", "vision")
    writer = mock_models.write_with_tokenizer(folder / "models", "writer")
    tiny_tokenizer.write(writer, chat_template=WRITER)
    with GatewayProcess(folder / "models", folder / "log") as process:
        process.wait_until_ready()
        yield process


def post(gateway: GatewayProcess, path: str, **fields: Any) -> Any:
    response = httpx.post(f"{gateway.url}{path}", json={"model": "vision", **fields}, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def user(*parts: Any) -> Any:
    return [{"role": "user", "content": list(parts)}]


def seen(client: openai.OpenAI, messages: Any, **more: Any) -> list[str]:
    """The images that reached the engine, without their digests."""
    answer = client.chat.completions.create(model="vision", messages=messages, **more)
    content = answer.choices[0].message.content or ""
    return [each.rpartition(" ")[0] for each in content.split("; ")]


@honours(USER, f"{USER}.url")
def test_images_and_texts_reach_the_engine_in_order(client, gateway):
    """Through OpenAI's own client; interleaved in the prompt as they were sent."""
    chat = user(images.part(PNG), images.text("a"), images.part(JPEG), images.text("b"))

    assert seen(client, chat) == ["png 4x5 auto", "jpeg 6x7 auto"]
    rendered = post(gateway, "/v1/chat/completions/render", messages=chat)["prompt"]
    assert "<|vision|><image>a<|vision|><image>b" in rendered


def test_images_of_any_message_reach_the_engine(client):
    """System messages, earlier turns and the results of tools, which agents' screenshots are."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = [
        {"role": "system", "content": [images.part(PNG)]},
        *user(images.part(JPEG), images.text("what is this?")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [images.part(GIF), images.text("shot")]},
    ]

    assert seen(client, chat) == ["png 4x5 auto", "jpeg 6x7 auto", "gif 8x9 auto"]


@honours(f"{USER}.detail")
@pytest.mark.parametrize("detail", ["auto", "low", "high", "original"])
def test_detail_reaches_the_engine(client, detail):
    assert seen(client, user(images.part(PNG, detail=detail))) == [f"png 4x5 {detail}"]


@accepts(
    f"{USER}.prompt_cache_breakpoint",
    f"{USER}.prompt_cache_breakpoint.mode",
    f"{USER}.prompt_cache_breakpoint.ttl",
)
def test_cache_breakpoint_of_an_image_does_not_change_the_answer(client):
    breakpoint = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}

    assert seen(client, user({**images.part(PNG), **breakpoint})) == ["png 4x5 auto"]


def test_documented_example_runs(gateway, tmp_path, monkeypatch, capsys):
    """docs/multimodal.md, with this server's port."""
    page = (ROOT / "docs" / "multimodal.md").read_text()
    code, _ = [text for language, text in BLOCK.findall(page) if language == "python"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "screenshot.png").write_bytes(PNG)

    exec(code.replace("http://127.0.0.1:9000", gateway.url), {})  # noqa: S102  our own page

    description, tokens = capsys.readouterr().out.splitlines()
    assert (description[:13], tokens) == ("png 4x5 auto ", "16")


@honours("chat.messages.content.uuid")
def test_uuid_stands_for_the_image_that_was_sent_with_it(client):
    """As vLLM's: later requests may leave out the data."""
    sent = {"type": "image_url", "image_url": {"url": images.data_url(PNG)}, "uuid": "shot-1"}
    again = {"type": "image_url", "image_url": None, "uuid": "shot-1"}

    assert seen(client, user(sent)) == ["png 4x5 auto"]
    assert seen(client, user(again, images.part(JPEG))) == ["png 4x5 auto", "jpeg 6x7 auto"]


@pytest.mark.parametrize("stream", [False, True])
def test_usage_counts_the_tokens_of_images(client, stream):
    """They are part of the prompt's tokens. A chat without images has no such count."""
    for chat, expected in (
        (user(images.part(PNG), images.part(GIF)), 32),
        (user(images.text("a")), None),
    ):
        answer = client.chat.completions.create(
            model="vision", messages=chat, stream=stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )  # fmt: skip
        usage = list(answer)[-1].usage if stream else answer.usage
        assert getattr(usage.prompt_tokens_details, "image_tokens", None) == expected
        assert usage.prompt_tokens > (expected or 0)


def test_each_choice_gets_the_images(client):
    answer = client.chat.completions.create(
        model="vision", messages=user(images.part(PNG)), n=3, temperature=1
    )

    assert {choice.message.content for choice in answer.choices} == {
        answer.choices[0].message.content
    }
    assert answer.choices[0].message.content.startswith("png 4x5 auto ")
    assert answer.usage.prompt_tokens_details.image_tokens == 16


@refuses(f"{USER}.url")
def test_url_of_another_server_is_refused(client):
    """Nothing is fetched; the message says how to send the image."""
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

    with pytest.raises(openai.BadRequestError, match="base64-encoded data URL") as refused:
        client.chat.completions.create(model="vision", messages=user(part))
    assert (refused.value.param, refused.value.code) == (
        "messages[0].content[0].image_url.url",
        "invalid_image_url",
    )


def test_models_state_capability_and_limits(gateway):
    listed = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"]
    found = {each["id"]: each for each in listed}

    assert found["writer"]["images"] is None
    assert [found[name]["capabilities"]["images"] for name in ("vision", "writer")] == [
        True,
        False,
    ]
    assert found["vision"]["images"] == {
        "formats": ["png", "jpeg", "gif", "webp"],
        "detail": ["auto", "low", "high", "original"],
        "max_images": 16,
        "max_image_bytes": 20 * 1024 * 1024,
        "max_image_pixels": 25_000_000,
        "max_pixels": 100_000_000,
        "max_tokens_per_image": 16,
    }


def test_tokens_have_one_placeholder_for_each_image(gateway):
    """As the engine gets them, before it expands the placeholders."""
    chat = user(images.part(PNG), images.text("a"), images.part(PNG))
    tokens = post(gateway, "/tokenize", messages=chat)["tokens"]

    rendered = post(gateway, "/v1/chat/completions/render", messages=chat)
    assert rendered["token_ids"] == tokens
    places = [f"messages[0].content[{at}].image_url.url" for at in (0, 2)]
    assert rendered["uncounted_media"] == places
    assert post(gateway, "/detokenize", tokens=tokens)["prompt"].count("<image>") == 2


def embedding(gateway: GatewayProcess, **fields: Any) -> list[float]:
    vector: list[float] = post(gateway, "/v1/embeddings", **fields)["data"][0]["embedding"]
    return vector


EMBEDDED = [
    "", ".content", ".content.image_url", ".content.image_url.url", ".content.image_url.detail",
    ".content.uuid",
]  # fmt: skip


@honours(*(f"embeddings.messages{field}" for field in EMBEDDED))
def test_conversation_with_images_is_embedded(gateway):
    """Other images give another vector; a uuid gives the vector of the image that it names."""
    chats = [
        user(images.part(PNG, detail="low"), images.text("a")),
        user(images.part(JPEG), images.text("a")),
        user(
            {"type": "image_url", "image_url": images.data_url(PNG), "uuid": "e"}, images.text("a")
        ),
        user({"type": "image_url", "uuid": "e"}, images.text("a")),
    ]

    png, jpeg, named, again = (embedding(gateway, messages=chat) for chat in chats)

    assert png == named == again
    assert png != jpeg


CALL = {"id": "c1", "type": "function", "function": {"name": "f1", "arguments": '{"x1": 1}'}}
CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "f2", "input": "x2"}}
FIELDS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"role": "user", "content": [images.text("t1")], "name": "n1"}, ["t1", "n1"],
     ["content.text", "name"]),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "r1"}], "refusal": "r2"},
     ["r1", "r2"], ["content.refusal", "refusal"]),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, ["c1", "f1", "x1"],
     ["tool_calls", "tool_calls.function", "tool_calls.function.id", "tool_calls.function.name",
      "tool_calls.function.arguments"]),
    ({"role": "assistant", "content": None, "tool_calls": [CUSTOM]}, ["c2", "f2", "x2"],
     ["tool_calls.custom", "tool_calls.custom.id", "tool_calls.custom.name",
      "tool_calls.custom.input"]),
    ({"role": "assistant", "content": None, "function_call": CALL["function"]}, ["f1", "x1"],
     ["function_call", "function_call.name", "function_call.arguments"]),
    ({"role": "tool", "content": "t", "tool_call_id": "c3"}, ["c3"], ["tool_call_id"]),
    ({"role": "assistant", "content": "t", "annotations": ["a1"]}, ["a1"], ["annotations"]),
    ({"role": "assistant", "content": "t", "reasoning": "h1", "reasoning_content": "h1"}, ["h1"],
     ["reasoning", "reasoning_content"]),
]  # fmt: skip


def of_message(message: Any, values: list[str], names: list[str]) -> Any:
    return pytest.param(
        message, values, marks=honours(*(f"embeddings.messages.{name}" for name in names))
    )


@pytest.mark.parametrize(("message", "values"), [of_message(*row) for row in FIELDS])
def test_embedded_conversation_is_rendered_as_a_chat(gateway, message, values):
    """Its vector is that of the tokens of the rendered chat."""
    asked = {"model": "writer", "messages": [message]}
    tokens = post(gateway, "/tokenize", **asked, add_generation_prompt=False)["tokens"]
    text = post(gateway, "/detokenize", model="writer", tokens=tokens)["prompt"]

    assert all(value in text for value in values), text
    vector = embedding(gateway, **asked)
    assert vector == embedding(gateway, model="writer", input=tokens)


@honours("embeddings.add_generation_prompt", "embeddings.continue_final_message")
@pytest.mark.parametrize("field", ["add_generation_prompt", "continue_final_message"])
def test_end_of_an_embedded_conversation_is_as_asked(gateway, field):
    chat = [{"role": "assistant", "content": "Once upon a"}]
    asked = {"messages": chat, field: True}

    tokens = post(gateway, "/tokenize", **asked)["tokens"]

    assert embedding(gateway, **asked) == embedding(gateway, input=tokens)
    assert embedding(gateway, **asked) != embedding(gateway, messages=chat)


@honours("embeddings.chat_template_kwargs")
def test_variables_of_the_template_reach_an_embedded_conversation(gateway):
    asked = {"model": "writer", "messages": user(images.text("a"))}
    variables: list[dict[str, str]] = [{}, {"flavour": "x"}, {}]
    vectors = [embedding(gateway, **asked, chat_template_kwargs=each) for each in variables]

    assert vectors[0] == vectors[2] != vectors[1]


@refuses("embeddings.add_generation_prompt", "embeddings.chat_template_kwargs")
def test_input_and_messages_exclude_each_other(gateway):
    for fields, param in (
        ({"input": "a", "messages": user(images.text("a"))}, "messages"),
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ):
        response = httpx.post(f"{gateway.url}/v1/embeddings", json={"model": "vision", **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
