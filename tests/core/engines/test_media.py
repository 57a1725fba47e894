"""Images and audio of a request: the tensors, the mock, and models that take neither."""

import hashlib
import json
from array import array
from contextlib import nullcontext
from typing import Any

import pytest

from openai_frontend import errors
from openai_frontend.engines import input_tensors
from openai_frontend.engines.media import (
    audio_digest,
    base64_digest,
    read_audio,
    read_audio_files,
    read_images,
)
from openai_frontend.media.modalities import (
    ENGINE_LIMITS,
    ImageInput,
    ImageSupport,
    TranscriptionSupport,
)
from tests import mock_models
from tests.core.triton import generation_inputs
from tests.core.triton.generation_inputs import collect, generation
from tests.fast.engines.test_tensors import CONTEXT, Values, text

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

    images = input_tensors.read_generation(inputs, "r", CONTEXT).images

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

    (image,) = input_tensors.read_generation(inputs, "r", CONTEXT).images

    assert image.digest == base64_digest("AAAA", "tenant") != base64_digest("AAAA")
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


@pytest.mark.parametrize(
    ("stated", "taken"),
    [
        ((2.5, 7), (2.5, 7)),
        ((10**15, 1e20), (1500.0, 150_000_000)),
        ((1e308, 1e308), (1500.0, 150_000_000)),
    ],
    ids=["lower", "higher", "huge"],
)
def test_limits_on_audio_can_only_be_lowered(stated, taken):
    """Any client of the tensors may send `media_info`."""
    limits = dict(zip(("max_seconds", "max_samples"), stated, strict=True))
    described = {"kind": "audio", "digest": "ab" * 32, "format": "wav", **limits}

    (file,) = read_audio_files(
        {"audio_file": Values([b"AAAA"]), "media_info": info(described)}, None
    )

    assert (file.max_seconds, file.max_samples) == taken


@pytest.mark.parametrize(("limit", "allowed"), [(999, False), (1000, True)])
def test_stated_size_is_within_the_operators_limit(monkeypatch, limit, allowed):
    monkeypatch.setattr(ENGINE_LIMITS, "max_image_pixels", limit)
    inputs = {
        "image": Values([b"AAAA"]),
        "media_info": info({**DESCRIBED, "width": 50, "height": 20}),
    }

    with nullcontext() if allowed else pytest.raises(ValueError, match="the limit is 999 in total"):
        assert [each.width for each in read_images(inputs, None)] == [50]


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
    images = ImageSupport(max_per_request=2, max_tokens_per_image=10)
    assert server.model_facts("mock").images == images


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "image: the model does not take images"), ({"images_per_prompt": 1}, "at most 1, not 2")],
    ids=["text only", "too many"],
)
async def test_images_that_a_model_does_not_take(ask, settings, message):
    """They are refused, never dropped."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await ask(**settings)


SAMPLES = array("f", [0.0, 0.5, -0.5]).tobytes()


def test_audio_with_and_without_its_digest():
    """Without `media_info`, the digest is computed from the samples and the salt of the request."""
    given = {"audio": SAMPLES, "media_info": info({"kind": "audio", "digest": "ab" * 32})}

    assert read_audio(given, None).digest == "ab" * 32
    found = read_audio({"audio": SAMPLES}, "tenant")
    assert bytes(found.samples) == SAMPLES
    assert found.digest == audio_digest(SAMPLES, "tenant")
    assert audio_digest(SAMPLES) == hashlib.sha256(SAMPLES).hexdigest() != found.digest


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ((), "0 items for 1 audio"),
        ((DESCRIBED,), "kind 'audio'"),
        (({"kind": "audio", "digest": "ab"},), "digest must have 64"),
    ],
    ids=["count", "kind", "digest"],
)
def test_invalid_description_of_audio(described, message):
    """The error names the tensor and the field."""
    with pytest.raises(ValueError, match=message):
        read_audio({"audio": SAMPLES, "media_info": info(*described)}, None)


@pytest.fixture
def say(repository, start_server):
    """Sends samples, or none, to a core whose mock model has the given settings."""

    async def send(samples, **settings):
        mock_models.write(repository, "mock", **settings)
        server = await start_server()
        inputs = generation("<|startoftranscript|>", stream=False, max_tokens=5)
        if samples is not None:
            inputs["audio"] = "FP32", (len(samples) // 4,), samples
        (response,) = await collect(server.infer("mock", inputs))
        return server, response

    return send


async def test_mock_describes_audio(say):
    """It reports what its models take, as an engine with a transcription model does."""
    server, response = await say(SAMPLES, audio_window_s=4.0, describe_audio=True)

    assert response.item("text_output") == b"3 samples " + audio_digest(SAMPLES)[:8].encode()
    assert server.model_facts("mock").transcription == TranscriptionSupport(
        sample_rate=16_000,
        window_seconds=4.0,
        languages=("en", "de"),
        timestamps=True,
        translation=True,
    )


@pytest.mark.parametrize(
    ("samples", "settings", "message"),
    [
        (SAMPLES, {}, "audio: the model does not take audio"),
        (None, {"audio_window_s": 4.0}, "audio: .* the request has none"),
        (b"", {"audio_window_s": 4.0}, "0 samples; the model takes 1 to 64,000"),
        (
            b"\0" * 4 * 801,
            {"audio_window_s": 0.05},
            r"801 samples; .* 1 to 800 \(0.05 s at 16000 Hz",
        ),
    ],
    ids=["no audio model", "no audio", "empty", "longer than the window"],
)
async def test_audio_that_a_model_does_not_take(say, samples, settings, message):
    """It is refused with the limit, never cut."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await say(samples, **settings)
