"""Images of a request: the tensors, the mock, and models without images."""

import json
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.engines import tensors
from openai_frontend.engines.images import image_digest, read_images
from openai_frontend.generation import ImageInput
from tests import mock_models
from tests.unit.engines.test_tensors import CONTEXT, Values, text
from tests.unit.triton import generation_inputs
from tests.unit.triton.generation_inputs import collect, generation

DESCRIBED = {
    "kind": "image", "digest": "ab" * 32, "detail": "low", "width": 3, "height": 2, "format": "png",
}  # fmt: skip


def info(*described: Any) -> Values:
    return text(json.dumps(described))


def test_described_images():
    """They come in order, as `media_info` describes them."""
    second = {**DESCRIBED, "detail": "auto", "format": "gif"}
    inputs = {
        "text_input": text("hi"),
        "image": Values([b"AAAA", b"BBBB"]),
        "media_info": info(DESCRIBED, second),
    }

    images = tensors.read_generation(inputs, "r", CONTEXT).images

    common: dict[str, Any] = {"digest": "ab" * 32, "width": 3, "height": 2}
    assert list(images) == [
        ImageInput(base64="AAAA", format="png", detail="low", **common),
        ImageInput(base64="BBBB", format="gif", **common),
    ]


def test_images_of_nvidias_clients():
    """Without `media_info`, the digest is computed from the text and the salt of the request."""
    inputs = {
        "text_input": text("hi"), "image": Values([b"AAAA"]), "cache_salt": text("tenant")
    }  # fmt: skip

    (image,) = tensors.read_generation(inputs, "r", CONTEXT).images

    assert image.digest == image_digest("AAAA", "tenant") != image_digest("AAAA")
    assert (image.width, image.height, image.format) == (0, 0, "")


INVALID = {
    "not ASCII": ({"image": Values([b"\xff"])}, "image: not base64"),
    "not JSON": ({"image": Values([b"A"]), "media_info": text("[")}, "media_info: not JSON"),
    "an object": ({"image": Values([b"A"]), "media_info": text("{}")}, "not a JSON array"),
    "count": ({"image": Values([b"A"]), "media_info": info()}, "0 items for 1 images"),
    "too long": ({"image": Values([b"A"]), "media_info": text(" " * 70_000)}, "limit is 65536"),
    **{
        name: ({"image": Values([b"A"]), "media_info": info({**DESCRIBED, **wrong})}, message)
        for name, wrong, message in (
            ("kind", {"kind": "video"}, "kind 'image'"),
            ("digest", {"digest": "ab"}, "digest must have 64"),
            ("detail", {"detail": "medium"}, "detail must be one of"),
            ("format", {"format": "tiff"}, "format one of"),
            ("width", {"width": 0}, "must be positive integers"),
            ("height", {"height": True}, "must be positive integers"),
        )
    },
}


@pytest.mark.parametrize(("inputs", "message"), INVALID.values(), ids=INVALID)
def test_invalid_images(inputs, message):
    """The error names the tensor and the field."""
    with pytest.raises(ValueError, match=message):
        read_images(inputs, None)


@pytest.fixture
def ask(repository, start_server):
    """Sends two images to a core whose mock model has the given settings."""

    async def send(**settings):
        mock_models.write(repository, "mock", **settings)
        server = await start_server()
        inputs = generation("three words here", stream=False, max_tokens=5)
        inputs["image"] = generation_inputs.text("AAAA", "BBBB")
        inputs["media_info"] = generation_inputs.text(json.dumps([DESCRIBED] * 2))
        (response,) = await collect(server.infer("mock", inputs))
        return server, response

    return send


async def test_mock_describes_and_counts_images(ask):
    """Each placeholder counts as `tokens_per_image`."""
    server, response = await ask(images_per_prompt=2, tokens_per_image=10, describe_images=True)

    assert response.item("text_output") == b"png 3x2 low abababab; png 3x2 low abababab"
    assert response.item("num_image_tokens") == 20
    assert response.item("num_input_tokens") == 3 + 2 * (10 - 1)
    assert server.model_facts("mock")["images"] == {
        "max_per_request": 2, "max_tokens_per_image": 10, "placeholder": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "image: the model does not take images"), ({"images_per_prompt": 1}, "at most 1, not 2")],
    ids=["text only", "too many"],
)
async def test_images_that_a_model_does_not_take(ask, settings, message):
    """They are refused, never dropped."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await ask(**settings)
