"""Pictures for the demo vision model, and requests with them."""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

from PIL import Image

from openai_frontend.engines.media import base64_digest
from openai_frontend.generation import CompletionDelta, merge_deltas
from openai_frontend.triton import Server
from openai_frontend.triton.responses import TensorInput
from tests.core.triton import generation_inputs
from tests.gateway_process import ROOT
from tests.vllm.requests import collect, contract, request

MODEL = "demo-vision"
FOLDER = ROOT / "model_repository" / MODEL
WEIGHTS = FOLDER / "1" / "weights"


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> str:
    """Base64 of the image's file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return base64.b64encode(file.getvalue()).decode()


def described(image: Image.Image, text: str, **changes: Any) -> dict[str, Any]:
    """The image's item of `media_info`."""
    return {
        "kind": "image", "digest": base64_digest(text), "detail": "auto", "width": image.width,
        "height": image.height, "format": "png", **changes,
    }  # fmt: skip


def tensors(images: Sequence[Image.Image], **changes: Any) -> dict[str, TensorInput]:
    """The inputs `image` and `media_info`; `changes` are to each item of the latter."""
    texts = [encoded(each) for each in images]
    info = [described(*each, **changes) for each in zip(images, texts, strict=True)]
    return {
        "image": generation_inputs.text(*texts),
        "media_info": generation_inputs.text(json.dumps(info)),
    }


async def ask(
    server: Server,
    prompt: Sequence[int],
    images: dict[str, TensorInput],
    *,
    model: str = MODEL,
    **options: Any,
) -> CompletionDelta:
    """The whole answer to a prompt with images, as the gateway sends it."""
    asked = request(prompt, **{"max_tokens": 60, **options})
    inputs = {**contract(server, model).encode(asked), **images}
    stream = server.infer(model, inputs, request_id="test")
    return merge_deltas(await collect(server, model, stream, asked))
