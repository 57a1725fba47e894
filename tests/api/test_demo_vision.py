"""The demo vision model through the API: images in vLLM, with OpenAI's client."""

import base64
import io
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from PIL import Image

from scripts.demo_vision.pictures import paint
from scripts.demo_vision.questions import KINDS, scored_questions
from tests import images

pytestmark = pytest.mark.engine

QUESTIONS = 20


@pytest.fixture
def client(default_client: openai.OpenAI) -> openai.OpenAI:
    """Of the gateway with all demo models."""
    return default_client


def data_url(drawing: Image.Image) -> str:
    file = io.BytesIO()
    drawing.save(file, "PNG")
    return images.data_url(file.getvalue())


def asked(text: str, url: str) -> Any:
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_about_fresh_drawings_are_right(client: openai.OpenAI, kind: Any):
    """At least 95 %, about up to four shapes."""
    drawn = random.Random(kind)
    questions = scored_questions(32, "train", QUESTIONS, kinds=[kind])
    rows = [
        (data_url(paint(drawn, scene, 640, 480)), message["content"], expected)
        for _, scene, message, expected in questions
    ]

    def answer(row: tuple[str, Any, str]) -> str:
        url, content, _ = row
        text = next(part["text"] for part in content if part["type"] == "text")
        chat = client.chat.completions.create(
            model="demo-vision", messages=asked(text, url), temperature=0
        )
        assert chat.model_dump()["usage"]["prompt_tokens_details"]["image_tokens"] == 16
        return chat.choices[0].message.content or ""

    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(answer, rows)]

    wrong = [(row[2], text) for row, text in zip(rows, answers, strict=True) if row[2] != text]
    assert len(wrong) <= QUESTIONS // 20, wrong


def test_stream_has_the_text_of_the_complete_answer(client: openai.OpenAI):
    messages = asked("Describe the picture.", data_url(Image.new("RGB", (64, 64), "white")))
    options: dict[str, Any] = {"model": "demo-vision", "messages": messages, "temperature": 0}

    complete = client.chat.completions.create(**options)
    chunks = client.chat.completions.create(**options, stream=True)

    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == complete.choices[0].message.content != ""


def test_tokens_of_images_are_counted_as_the_engine_counts_them(client: openai.OpenAI):
    """In /tokenize and /render, whatever the images' sizes."""
    sizes = [(64, 64), (700, 300)]
    parts = [asked("", data_url(Image.new("RGB", size)))[0]["content"][0] for size in sizes]
    content = [*parts, {"type": "text", "text": "Describe the picture."}]
    body: dict[str, Any] = {
        "model": "demo-vision",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1,
    }

    chat = client.chat.completions.create(**body)
    count = chat.usage.prompt_tokens if chat.usage else 0
    tokenized = client.post("/tokenize", body={**body, "max_tokens": None}, cast_to=object)
    rendered = client.post("/chat/completions/render", body=body, cast_to=object)
    assert [each["count"] for each in (tokenized, rendered)] == [count, count]  # type: ignore[index]
    assert tokenized["uncounted_media"] is rendered["uncounted_media"] is None  # type: ignore[index]
    assert [len(tokenized["tokens"]), len(rendered["token_ids"])] == [count] * 2  # type: ignore[index]


def test_image_that_cannot_be_decoded_is_a_400(client: openai.OpenAI):
    """Its header is right; the decoder finds the rest missing, in a process of its own."""
    whole = base64.b64decode(data_url(Image.effect_noise((64, 64), 90)).partition(",")[2])
    url = f"data:image/png;base64,{base64.b64encode(whole[:200]).decode()}"

    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="demo-vision", messages=asked("What is it?", url))

    assert refused.value.code == "image_parse_error"
    assert "PIL" not in str(refused.value)
