"""Speech of a model that sends its waveform in parts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from openai_frontend.admission.memory_budget import MemoryBudget, RequestMemory
from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.errors import InferenceFailed, QueueFull, ServerOverloaded
from openai_frontend.media.audio import wav_header
from openai_frontend.media.modalities import SpeechRequest
from openai_frontend.request_context.context import RequestContext
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter
from openai_frontend.serving.admission.permit import Admission
from openai_frontend.serving.speech import SpeechJob

RATE = 24_000


class Speaker:
    """A model with this waveform."""

    name = model_name = "speaker"
    concurrency_limits = NO_LIMITS

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    async def speak(self, request: SpeechRequest) -> AsyncGenerator[memoryview, None]:
        for each in self._parts:
            yield memoryview(each)


def job(
    *parts: bytes,
    format: str = "pcm",
    limiter: ConcurrencyLimiter | None = None,
    budget: MemoryBudget | None = None,
) -> SpeechJob:
    """`format` is streamed, so nothing is encoded."""
    model: Any = Speaker(parts)
    unused: Any = SimpleNamespace(spoken=lambda *_: None)
    return SpeechJob(
        model=model,
        context=RequestContext("req_1"),
        admission=Admission(limiter or ConcurrencyLimiter(1)),
        request=SpeechRequest(request_id="r", text="hi"),
        format=format,
        rate=RATE,
        streams=True,
        codec=unused,
        observer=unused,
        memory=RequestMemory(budget or MemoryBudget(10**9)),
    )


async def written(job: SpeechJob) -> list[bytes]:
    return [each async for each in job.audio()]


@pytest.mark.parametrize("format", ["pcm", "wav"])
async def test_nothing_is_sent_before_a_slot_is_free(format):
    """So a full queue keeps its status."""
    limiter = ConcurrencyLimiter(1, max_queue_size=0)
    refused = job(b"\0" * 4, format=format, limiter=limiter)
    await limiter.slots_for(refused.model).acquire(1)

    with pytest.raises(QueueFull):
        await anext(refused.audio())


@pytest.mark.parametrize("format", ["pcm", "wav"])
async def test_nothing_is_sent_without_a_waveform(format):
    with pytest.raises(InferenceFailed):
        await anext(job(format=format).audio())


async def test_header_comes_once_before_the_first_samples():
    part = numpy.array([0.5, -1.0], "<f4").tobytes()

    head, *samples = await written(job(part, part, format="wav"))

    assert (head, samples) == (wav_header(RATE), [b"\x00\x40\x01\x80"] * 2)


async def test_loop_stays_free_while_a_long_part_is_converted():
    """Its samples are those of the whole."""
    values = numpy.random.default_rng(1).normal(0, 1, 3_000_001).astype("<f4")
    values[7], values[8] = numpy.nan, numpy.inf
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    found = b"".join(await written(job(values.tobytes())))
    turning.cancel()

    scaled = numpy.nan_to_num(values).clip(-1.0, 1.0) * 32767.0
    assert found == scaled.round().astype("<i2").tobytes()
    assert turns > 40  # one for each 0.5 ms


async def test_slot_is_free_once_the_model_has_ended_however_slowly_audio_is_taken():
    """What is not taken counts in memory."""
    limiter, budget = ConcurrencyLimiter(1), MemoryBudget(1000)
    spoken = job(b"\0" * 400, b"\0" * 400, limiter=limiter, budget=budget)
    audio = spoken.audio()
    await anext(audio)

    slots = limiter.slots_for(spoken.model)
    granted = await slots.acquire(1, timeout_s=60)  # waits until the model has ended
    assert (granted, budget.used_bytes) == (1, 800)
    assert [len(each) async for each in audio] == [200]
    assert budget.used_bytes == 0


@pytest.mark.parametrize("format", ["pcm", "wav"])
async def test_waveforms_beyond_the_budget_are_refused(format):
    with pytest.raises(ServerOverloaded):
        await anext(job(b"\0" * 400, format=format, budget=MemoryBudget(399)).audio())


async def test_audio_that_is_not_wanted_any_more_frees_slot_and_memory():
    limiter, budget = ConcurrencyLimiter(1), MemoryBudget(1000)
    spoken = job(b"\0" * 400, b"\0" * 400, limiter=limiter, budget=budget)
    audio = spoken.audio()
    await anext(audio)
    await audio.aclose()
    spoken.memory.release()  # as the end of each request does

    assert (limiter.running, budget.used_bytes) == (0, 0)
