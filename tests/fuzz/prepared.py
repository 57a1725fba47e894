"""A body of a request, as far as the model's door: what reaches it, or a refusal."""

from typing import Any

from openai_frontend.errors import GatewayError
from openai_frontend.serving.request.request_body import BodyReader
from tests.fuzz import loop
from tests.fuzz.outcome import refusal
from tests.unit.serving.fake_model import FakeModel


def prepared(reader: BodyReader[Any], endpoint: Any, start: bytes, data: bytes) -> Any | None:
    """The answer that `endpoint` is ready to give, or None where it refuses the request. What
    begins as no object is the end of `start`, which is valid so far.
    """
    body = data if data.startswith(b"{") else start + data
    return loop.run(_prepared(reader, endpoint, body))


async def _prepared(reader: BodyReader[Any], endpoint: Any, body: bytes) -> Any | None:
    try:
        return await endpoint.prepare(reader.read(body), FakeModel(max_model_len=10_000))
    except GatewayError as error:
        refusal(error, body)
        return None
