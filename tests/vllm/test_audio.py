"""Transcription with the real engine and the demo speech model."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio

from openai_frontend import errors
from openai_frontend.engines.media import audio_digest
from openai_frontend.engines.vllm import capabilities
from openai_frontend.generation import CompletionDelta, merge_deltas
from openai_frontend.media.modalities import TranscriptionSupport
from openai_frontend.triton import Server, inprocess
from openai_frontend.triton.responses import TensorInput
from tests import recordings
from tests.core.triton import generation_inputs
from tests.gateway_process import ROOT
from tests.recordings import Recording
from tests.vllm.conftest import Models, needs
from tests.vllm.requests import collect, contract, request

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    needs(capabilities.AUDIO),
]

MODEL = "demo-speech"
FOLDER = ROOT / "model_repository" / MODEL
START = "<|startoftranscript|>"
MAX_ERROR_S = 0.25
SEGMENT = re.compile(r"<\|(\d\.\d\d)\|>([^<]*)<\|(\d\.\d\d)\|>")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(models_beside: Models) -> AsyncIterator[Server]:
    """The core, with the demo speech model."""
    shutil.copytree(FOLDER, models_beside.repository / MODEL)
    async with models_beside.loaded(MODEL) as core:
        yield core


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER / "1" / "weights")


def audio(samples: Any) -> dict[str, TensorInput]:
    data = np.asarray(samples, "<f4").tobytes()
    return {"audio": ("FP32", (len(data) // 4,), data)}


async def ask(
    server: Server,
    prompt: str | Sequence[int],
    inputs: dict[str, TensorInput],
    *,
    model: str = MODEL,
    **options: Any,
) -> CompletionDelta:
    """The whole output for a decoder's prompt, as text or token ids."""
    asked = request(prompt, **{"max_tokens": 40, "skip_special_tokens": False, **options})
    stream = server.infer(model, {**contract(server, model).encode(asked), **inputs})
    return merge_deltas(await collect(server, model, stream, asked))


def transcribing(language: str, *, timestamps: bool = False, task: str = "transcribe") -> str:
    return f"{START}<|{language}|><|{task}|>" + ("" if timestamps else "<|notimestamps|>")


async def heard(server: Server, recording: Recording, **options: Any) -> str:
    prompt = transcribing(recording.language, timestamps=True)
    return (await ask(server, prompt, audio(recording.samples), **options)).text


def segments(text: str) -> list[tuple[float, float]]:
    return [(float(start), float(end)) for start, _, end in SEGMENT.findall(text)]


def words(text: str) -> str:
    return "".join(said for _, said, _ in SEGMENT.findall(text))


def runs() -> int:
    """How often features were computed."""
    host: Any = inprocess.handle(MODEL)
    found: int = host._engine._audio.cache._pool.runs
    return found


async def test_engine_reports_what_it_takes(server: Server):
    """The gateway's capabilities and limits of the model."""
    facts = server.model_facts(MODEL)
    assert facts is not None
    assert facts.images is None
    assert facts.transcription == TranscriptionSupport(
        sample_rate=16_000,
        window_seconds=4.0,
        languages=["en", "de"],
        timestamps=True,
        translation=True,
    )


@pytest.mark.parametrize("name", recordings.NAMES)
async def test_recording_is_transcribed_with_times(server: Server, name):
    """To the letter; each segment within 0.25 s. Streamed, or whole with log probabilities."""
    recording = recordings.read(name)

    texts = [await heard(server, recording, **each) for each in ({}, {"stream": False})]
    texts.append(await heard(server, recording, logprobs=1))

    assert {*texts} == {texts[0]}
    assert words(texts[0]) == recording.text()
    found = segments(texts[0])
    assert len(found) == len(recording.segments)
    assert np.abs(np.subtract(found, recording.segments)).max() <= MAX_ERROR_S


async def test_fresh_utterances_are_right(server: Server):
    """At least 90 % of 40, to the letter, and their times within 0.25 s."""
    asked = [recordings.fresh(seed) for seed in range(40)]

    texts = await asyncio.gather(*(heard(server, each) for each in asked))

    pairs = [*zip(asked, texts, strict=True)]
    wrong = [(each.text(), words(text)) for each, text in pairs if words(text) != each.text()]
    assert len(wrong) <= 4, wrong
    errors_s = [
        abs(found - expected)
        for each, text in pairs
        if len(segments(text)) == 1
        for found, expected in zip(segments(text)[0], each.segments[0], strict=True)
    ]
    assert len(errors_s) >= 2 * 36
    assert sum(error <= MAX_ERROR_S for error in errors_s) >= 0.95 * len(errors_s)


async def test_german_is_translated(server: Server):
    recording = recordings.read("german")

    found = await ask(server, transcribing("de", task="translate"), audio(recording.samples))

    assert found.text == recording.text("en") != recording.text()
    assert found.counts is not None
    assert (found.counts.prompt_tokens, found.counts.image_tokens) == (4, 0)


@pytest.mark.parametrize("name", recordings.NAMES)
async def test_language_is_detected(server: Server, tokenizer, name):
    """One step after the start, in which only languages are allowed."""
    recording = recordings.read(name)
    allowed = tokenizer.convert_tokens_to_ids(["<|en|>", "<|de|>"])

    found = await ask(
        server, START, audio(recording.samples), max_tokens=1, allowed_token_ids=allowed
    )

    assert found.text == f"<|{recording.language}|>"


async def test_silence_has_no_words(server: Server):
    found = await ask(server, transcribing("en"), audio(np.zeros(32_000)))

    assert found.text == ""
    assert found.finish_reason == "stop"


async def test_text_before_is_no_part_of_the_output(server: Server):
    """`<|startofprev|>` and what was said before; text in the prompt is tokenized."""
    recording = recordings.read("english")
    prompt = "<|startofprev|> one two three" + transcribing("en")

    found = await ask(server, prompt, audio(recording.samples))

    assert found.text == recording.text()


async def test_known_audio_costs_no_processor_run(server: Server, tokenizer):
    """For another task, and while the first run is under way."""
    given, before = audio(recordings.fresh(1000).samples), runs()
    ids = tokenizer.encode(transcribing("en"), add_special_tokens=False)

    await asyncio.gather(*(ask(server, ids, given) for _ in range(5)))
    await ask(server, START, given, max_tokens=1)
    await ask(server, ids, given)

    assert runs() - before == 1


def with_digest(samples: Any, salt: str | None) -> dict[str, TensorInput]:
    described = [{"kind": "audio", "digest": audio_digest(samples.tobytes(), salt)}]
    return {**audio(samples), "media_info": generation_inputs.text(json.dumps(described))}


async def test_salt_separates_audio(server: Server):
    """Requests with another salt share nothing, with the gateway's digest or without."""
    samples, before = recordings.fresh(1001).samples, runs()
    asked = [
        (audio(samples), None),
        (with_digest(samples, "tenant"), "tenant"),
        (audio(samples), "tenant"),
    ]

    texts = [
        (await ask(server, transcribing("en"), inputs, cache_salt=salt)).text
        for inputs, salt in asked
    ]

    assert len({*texts}) == 1
    assert runs() - before == 2


async def test_digest_of_other_audio_is_refused(server: Server):
    """Nobody stores audio under the digest of another, or under one of another salt."""
    samples = recordings.fresh(1004).samples
    other = {**with_digest(recordings.fresh(1005).samples, None), **audio(samples)}

    for inputs in (other, with_digest(samples, "tenant")):
        with pytest.raises(errors.InvalidRequest, match=r"audio: its digest .* other audio"):
            await ask(server, transcribing("en"), inputs)


REFUSED = {
    "no audio": ({}, "audio: the model transcribes audio, and the request has none"),
    "empty": (audio([]), "0 samples; the model takes 1 to 64,000"),
    "too long": (audio(np.zeros(64_001)), "64,001 samples; the model takes 1 to 64,000"),
    "not finite": (audio([0.0, np.nan]), "audio: samples must be finite numbers"),
    "infinite": (audio([0.0, np.inf]), "audio: samples must be finite numbers"),
}


@pytest.mark.parametrize(("inputs", "message"), REFUSED.values(), ids=REFUSED)
async def test_unusable_audio_is_refused(server: Server, inputs, message):
    """The engine never gets it, and serves on."""
    with pytest.raises(errors.InvalidRequest, match=message):
        await ask(server, transcribing("en"), inputs)

    assert inprocess.handle(MODEL)._engine.stats().running == 0


async def test_prompt_that_fills_the_context(server: Server):
    with pytest.raises(errors.GatewayError, match="96"):
        await ask(server, [300] * 96, audio(recordings.fresh(1002).samples))


async def test_one_sample_is_enough(server: Server):
    assert (await ask(server, transcribing("en"), audio([0.5]))).finish_reason == "stop"


async def test_cancelled_request_leaves_nothing_behind(server: Server):
    """A client that leaves while its audio is processed. The engine never gets the request."""
    host: Any = inprocess.handle(MODEL)
    cache, asked = host._engine._audio.cache, request(transcribing("en"))
    given = audio(recordings.fresh(1003).samples)

    await ask(server, START, audio(recordings.fresh(1006).samples), max_tokens=1)
    workers = [psutil.Process(each.process_id) for each in cache._pool._idle]  # one at least
    for each in workers:
        each.suspend()
    stream = server.infer(MODEL, {**contract(server, MODEL).encode(asked), **given})
    async with asyncio.timeout(300):
        while not cache._preparing:  # noqa: ASYNC110  it gives no event for it
            await asyncio.sleep(0)
        stream.cancel()
        for each in workers:
            each.resume()
        while cache._preparing or cache._running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert not cache._waiters
    assert host._engine.stats().running == 0


async def test_text_model_refuses_audio(server: Server):
    with pytest.raises(errors.InvalidRequest, match="audio: the model does not take audio"):
        await ask(server, [40, 41], audio([0.0]), model="demo")
