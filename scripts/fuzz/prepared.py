"""Prepares a request body up to the call of the model, or refuses it."""

from typing import Any

from openai_frontend.errors import GatewayError
from openai_frontend.media.modalities import ImageSupport
from openai_frontend.request_context.context import RequestContext, current
from openai_frontend.serving.request.request_body import BodyReader
from scripts.fuzz import loop
from scripts.fuzz.outcome import refusal
from tests.fast.serving.fake_model import FakeModel


def prepared(reader: BodyReader[Any], endpoint: Any, start: bytes, data: bytes) -> Any | None:
    """Return the answer that `endpoint` prepared, or None if it refuses the request.

    Data that does not start as an object is appended to `start`, which is valid so far.
    """
    body = data if data.startswith(b"{") else start + data
    return loop.run(_prepared(reader, endpoint, body))


async def _prepared(reader: BodyReader[Any], endpoint: Any, body: bytes) -> Any | None:
    try:
        model = FakeModel(max_model_len=10_000)
        model.images = ImageSupport()
        current.set(RequestContext("fuzz"))
        return await endpoint.prepare(await reader.read(body), model)
    except GatewayError as error:
        refusal(error, body)
        return None
