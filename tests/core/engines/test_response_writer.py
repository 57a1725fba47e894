"""What an engine's sink counts as made but not sent."""

from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.contracts.vllm import VLLMContract
from openai_frontend.engines.engine import ConstraintError
from openai_frontend.engines.response_writer import ResponseWriter, fail
from openai_frontend.errors import ConstraintRefused, InvalidRequest
from openai_frontend.generation import CompletionDelta, GenerationRequest, TokenCounts
from openai_frontend.triton import inprocess
from openai_frontend.triton._core import PendingDeltas
from tests.core.triton import puppet


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


@pytest.mark.parametrize("interval", [1, 8])
@pytest.mark.parametrize("counts", [True, False], ids=["counted", "plug-in"])
async def test_first_response_has_the_counts_of_the_prompt(ask, interval, counts):
    """The next ones are text again. An engine that reports no counts is as before."""
    request = await ask()
    generation = GenerationRequest(
        request_id="r", prompt="p", stream=True, stream_interval=interval
    )
    flag: Any = {"return_num_input_tokens": SimpleNamespace(item=lambda: True)}
    sink = ResponseWriter(request.execution, generation, flag, {}, PendingDeltas())
    if counts:
        sink.count_prompt(TokenCounts(9, cached_tokens=8))

    sink.send_text("a", [1])
    for _ in range(8):
        sink.send_text("b", [1])
    sink.send(CompletionDelta("c", [1], "stop", counts=TokenCounts(9, cached_tokens=8)))

    decode = VLLMContract({"backend": "inprocess"}).decoder(
        GenerationRequest(request_id="r", stream=True, count_prompt=True)
    )
    deltas = [decode(each) async for burst in request.stream for each in burst]
    assert not sink.counts_prompt
    first, last = deltas[0].counts, deltas[-1].counts
    assert first == (TokenCounts(9, 1, 8) if counts else None)
    assert last == TokenCounts(9, 9 if counts else 10, 8)
    assert [each.text for each in deltas[1:-1]] == (["b"] * 8 if interval == 1 else ["b" * 8])
    assert not any(each.counts for each in deltas[1:-1])


STREAM, IDS, INTERVAL = {"stream": True}, {"return_token_ids": True}, {"stream_interval": 4}


@pytest.mark.parametrize(
    ("fields", "flag", "logprobs", "native"),
    [
        ({}, None, 0, False),
        (STREAM, None, 0, True),
        (STREAM | IDS, None, 0, False),
        (STREAM | INTERVAL, None, 0, False),
        (STREAM, "return_num_output_tokens", 0, False),
        (STREAM, "return_logprobs", 3, True),
        (STREAM | INTERVAL, "return_logprobs", 3, True),  # each token has a response all the same
        (STREAM | IDS, "return_logprobs", 3, False),
        (STREAM, "return_logprobs", 0, False),
        (STREAM, None, 3, False),
        ({}, "return_logprobs", 3, False),
    ],
)
async def test_native_path_is_for_text_and_its_log_probabilities(
    ask, fields, flag, logprobs, native
):
    request = await ask()
    generation = GenerationRequest(request_id="r", prompt="p", **fields)
    inputs: Any = {} if flag is None else {flag: SimpleNamespace(item=lambda: True)}
    sink = ResponseWriter(request.execution, generation, inputs, {}, PendingDeltas())

    stream = sink.text_stream(lambda tokenizer, token_id: "x", object(), logprobs)

    assert (stream is not None) == native


@pytest.mark.parametrize(
    ("error", "kind"), [(ConstraintError, ConstraintRefused), (ValueError, InvalidRequest)]
)
async def test_only_the_type_of_an_error_says_that_a_constraint_was_refused(ask, error, kind):
    """The same words of another model do not, and the client sees the words alone."""
    request = await ask()

    fail(request.execution, error("structured_outputs: no text matches it"))

    with pytest.raises(InvalidRequest) as refused:
        await anext(request.stream)
    assert type(refused.value) is kind
    assert refused.value.message == "structured_outputs: no text matches it"
