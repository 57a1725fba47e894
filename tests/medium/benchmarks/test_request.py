import base64
import io
import json
from typing import Any

import pytest
from PIL import Image

from benchmarks import request
from benchmarks.request import Prompt


def body(message: bytes) -> Any:
    head, _, content = message.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}".encode() in head
    return json.loads(content)


@pytest.mark.parametrize("length", [1, 100, 32 * 1024, 1024 * 1024])
def test_prompt_has_the_length_in_its_name(length):
    """Exact to the byte and the same each time, so that two runs measure the same."""

    message = request.request("chat", "m", stream=False, tokens=1, prompt=Prompt(length))
    [prompt] = body(message)["messages"]

    assert len(prompt["content"].encode()) == length
    assert prompt["content"] == request.text.__wrapped__(length)


@pytest.mark.parametrize(
    ("kind", "path", "field"),
    [
        ("chat", "/v1/chat/completions", "messages"),
        ("completion", "/v1/completions", "prompt"),
        ("json_schema", "/v1/chat/completions", "response_format"),
        ("tools", "/v1/chat/completions", "tools"),
    ],
)
def test_each_kind_uses_its_endpoint(kind, path, field):
    """With the field of this kind, and an answer of the requested size."""

    message = request.request(kind, "m", stream=True, tokens=7)

    assert message.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    told = body(message)
    assert field in told
    assert (told["model"], told["stream"], told["max_tokens"]) == ("m", True, 7)


def test_questions_differ_by_number_and_ask_for_usage():
    """A prefix cache matches no whole prompt, and no answer ends early."""

    first, second = (
        body(request.request("question", "m", stream=True, tokens=7, prompt=Prompt(number=number)))
        for number in (1, 2)
    )

    assert first["messages"][-1] != second["messages"][-1]
    assert first["stream_options"] == {"include_usage": True}
    assert (first["max_tokens"], first["ignore_eos"], first["temperature"]) == (7, True, 0)


def images_of(kind: str, number: int) -> list[bytes]:
    message = request.request(kind, "m", stream=False, tokens=1, prompt=Prompt(number=number))
    parts = [part for each in body(message)["messages"] for part in each["content"]]
    urls = [part["image_url"]["url"] for part in parts if "image_url" in part]
    return [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]


@pytest.mark.parametrize(
    ("kind", "side", "count", "new"),
    [
        ("image_512", 512, 1, True),
        ("image_1024", 1024, 1, True),
        ("image_known", 1024, 1, False),
        ("image_turn", 1024, 30, False),
    ],
)
def test_images_are_decodable_and_new_where_the_kind_says_so(kind, side, count, new):
    """Another file with each number; in a conversation too, each image is another."""
    first, second = images_of(kind, 1), images_of(kind, 2)

    assert [Image.open(io.BytesIO(each)).size for each in first] == [(side, side)] * count
    assert len(set(first)) == count
    assert (first != second) == new


def test_inputs_of_numbered_embeddings_differ():
    """Within a request and between two."""

    told = [
        body(request.request("embeddings_float", "m", stream=False, tokens=1, prompt=prompt))
        for prompt in (Prompt(inputs=3, number=1), Prompt(inputs=3, number=2))
    ]

    assert len({text for each in told for text in each["input"]}) == 6


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_embeddings_are_sent_in_one_request(encoding_format):
    """Sixteen different inputs, so that one vector cannot answer them all."""

    told = body(request.request(f"embeddings_{encoding_format}", "m", stream=False, tokens=1))

    assert len(set(told["input"])) == request.EMBEDDING_INPUTS
    assert told["encoding_format"] == encoding_format
    assert "max_tokens" not in told
