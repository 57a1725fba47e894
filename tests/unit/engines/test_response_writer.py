"""What an engine's sink counts as made but not sent."""

import pytest

from openai_frontend.engines.response_writer import ResponseWriter
from openai_frontend.generation import GenerationRequest
from openai_frontend.triton import inprocess
from openai_frontend.triton._core import PendingDeltas
from tests.unit.triton import puppet


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a core whose models the test answers."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"stream": True}, (1, 0)),
        ({"stream": True, "stream_interval": 8}, (3, 0)),
        ({"stream": False}, (0, 3)),
    ],
    ids=["stream", "interval", "whole"],
)
async def test_deltas_without_a_response_are_counted(ask, fields, counted):
    """Three tokens, the second without text: counts those without a response of their own."""
    request, unsent = await ask(), PendingDeltas()
    generation = GenerationRequest(request_id="r", prompt="p", **fields)
    sink = ResponseWriter(request.execution, generation, {}, {}, unsent)

    for text in ("a", "", "b"):
        sink.send_text(text, [1])

    assert (unsent.streamed, unsent.whole) == counted
