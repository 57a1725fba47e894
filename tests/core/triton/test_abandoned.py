"""Responses to a request whose consumer has left, from a backend that ignores the cancellation."""

import gc

import pytest

from openai_frontend import errors
from openai_frontend.triton import _core, error_codes, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import collect


@pytest.fixture
async def ask(start_server, monkeypatch):
    """Sends a request to a fresh core."""
    monkeypatch.setattr(inprocess, "RUNTIME", puppet.__name__)
    async with puppet.model(await start_server()) as asked:
        yield asked


def send_many(request):
    for _ in range(100):
        request.execution.send_bytes("other", "x")


def live() -> tuple[int, int]:
    """How many responses and buffers live."""
    counts = _core.live_counts()
    return counts["responses"], counts["buffers"]


async def test_responses_after_the_cancellation_are_not_kept(ask):
    """One of them, without its output, shows that the backend works. All are counted."""
    request = await ask()
    request.stream.cancel()
    send_many(request)

    assert live() == (1, 0)
    assert request.stream.received == 100
    assert request.stream.answered_late()
    assert not request.stream.answered_late()
    send_many(request)
    assert (live(), request.stream.answered_late()) == ((1, 0), True)


async def test_end_after_the_cancellation(ask):
    """The last response and its error are kept."""
    request = await ask()
    request.stream.cancel()
    send_many(request)
    request.execution.fail(error_codes.CANCELLED, "cancelled")

    with pytest.raises(errors.RequestCancelled):
        await collect(request.stream)


async def test_failure_after_the_cancellation(ask):
    """It does not show that the backend works."""
    request = await ask()
    request.stream.cancel()
    request.execution.fail(error_codes.INTERNAL, "failed")

    assert not request.stream.answered_late()


async def test_responses_to_a_dropped_stream_are_not_kept(ask):
    """Neither earlier nor later ones, nor text that was to be relayed."""
    request = await ask()
    request.relay()
    send_many(request)
    assert live() == (100, 100)

    request.stream = None
    gc.collect()
    assert live() == (0, 0)
    send_many(request)
    request.send("text")
    assert live() == (1, 0)


async def test_consumer_that_stays_gets_the_outputs(ask):
    """A cancellation that keeps the output changes nothing for it."""
    request = await ask()
    request.stream.cancel_keep_output()
    request.execution.send_bytes("other", "x")

    [response] = request.stream._native.take()
    assert response.item("other") == b"x"
