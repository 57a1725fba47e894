"""From the fields of a transcription to requests for a model, and from its deltas to the answer."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest

from openai_frontend.admission.memory_budget import MemoryBudget, RequestMemory
from openai_frontend.admission.queue import NO_LIMITS
from openai_frontend.config.settings import Settings
from openai_frontend.errors import InvalidRequest, ServerOverloaded
from openai_frontend.generation import CompletionDelta, FinishReason, GenerationRequest, TokenCounts
from openai_frontend.media import audio as codec
from openai_frontend.media.fork_server import Refused
from openai_frontend.media.modalities import TranscriptionSupport
from openai_frontend.model_facts import ModelFacts
from openai_frontend.prompting.prompt import Prompt
from openai_frontend.serving.request.audio import AudioLimits, AudioReader
from openai_frontend.serving.request.field_policy import FieldPolicy
from openai_frontend.serving.request.request_body import FormReader
from openai_frontend.serving.transcription import (
    Task,
    TranscriptionJob,
    Transcriptions,
    TranscriptStream,
    complete,
)
from schemas.audio import SpeechToTextRequest, TranscriptionRequest, TranslationRequest
from tests import audio
from tests.cpu_time import budget
from tests.fast.serving.fake_model import admission

WHISPER = TranscriptionSupport(
    sample_rate=audio.RATE,
    window_seconds=4.0,
    languages=("en", "de", "zh"),
    timestamps=True,
    translation=True,
)
SPECIAL = [
    "<|startofprev|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|transcribe|>",
    "<|translate|>", "<|notimestamps|>", "<|nospeech|>",
]  # fmt: skip
DECODED = {"de": [3], "en": [2]}


class InThisProcess:
    """A codec without other processes."""

    def submit(self, header: Any, frames: Sequence[Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            outcome, written = codec.decode(header, memoryview(frames[0]))
            future.set_result((outcome, [memoryview(each).cast("B") for each in written]))
        except Refused as error:
            future.set_exception(error)
        return future


class Model:
    """Answers each window with its number of samples, in two deltas; hears German."""

    name = model_name = "whisper"
    concurrency_limits = NO_LIMITS
    max_output_tokens: int | None = None
    prompts: object | None = object()

    def __init__(self, support: TranscriptionSupport | None = WHISPER, *lacks: str) -> None:
        self.facts = ModelFacts(max_model_len=448, vocab_size=1000, transcription=support)
        self.lacks = lacks
        self.asked: list[GenerationRequest] = []
        self.previous: list[str] = []

    def supports(self, field: str) -> bool:
        return field not in self.lacks

    async def decoder_prompt(self, start: str, previous: str = "") -> Prompt:
        self.previous.append(previous)
        tokens = [f"<|{each}|>" for each in start[2:-2].split("|><|")]
        ids = [SPECIAL.index(each) if each in SPECIAL else 99 for each in tokens]
        return Prompt(start, ids)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Any, None]:
        self.asked.append(request)
        params = request.sampling_params
        if params.allowed_token_ids:
            yield [CompletionDelta("<|de|>", [3], "length")]
        elif params.logprob_token_ids:
            logprobs: Any = [{1: {"logprob": -0.1}, 8: {"logprob": -1.0}}]
            yield [CompletionDelta(" one", [1], "length", logprobs=logprobs)]
        else:
            assert request.audio is not None
            words = [f" {len(request.audio.samples) // 4}", " samples"]
            logprobs = [{each: {"logprob": -0.5}} for each in (200, 201)]
            counts = TokenCounts(4, 2)
            first, last = CompletionDelta(words[0], [200]), CompletionDelta(words[1], [201], "stop")
            last.counts = counts
            if params.logprobs is not None:
                first.logprobs, last.logprobs = logprobs[:1], logprobs[1:]
            request.usage.add([first, last])  # as the served model does
            yield [first]
            yield [last]

    def token_bytes(self, token_id: int) -> bytes | None:
        return {200: b" n", 201: b" samples"}.get(token_id, b"<|x|>")

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join({200: " n", 201: " samples"}[each] for each in ids)


def transcriptions(**limits: int) -> Transcriptions:
    class Ignores:
        def decoded(self, model: str, size: int, seconds: float, took_s: float) -> None: ...
        def spoken(self, model: str, seconds: float) -> None: ...

    reader = AudioReader(AudioLimits(**limits), InThisProcess(), Ignores())
    return Transcriptions(FieldPolicy("warn"), admission(16), reader)


async def prepared(
    model: Model,
    data: bytes | None = None,
    task: Task = "transcribe",
    memory: RequestMemory | None = None,
    **fields: Any,
) -> TranscriptionJob:
    schema: type[SpeechToTextRequest] = (
        TranscriptionRequest if task == "transcribe" else TranslationRequest
    )
    form = {
        name: value if isinstance(value, list) else str(value) for name, value in fields.items()
    }
    asked = FormReader(schema).read(form)
    file = audio.wav(["one", "two"]) if data is None else data
    memory = memory or RequestMemory(MemoryBudget(10**9))
    return await transcriptions().prepare(asked, file, model, task, memory)  # type: ignore[arg-type]


async def answered(model: Model, data: bytes | None = None, **fields: Any) -> Any:
    return await complete(await prepared(model, data, **fields))


def texts(model: Model) -> list[str | None]:
    return [each.prompt for each in model.asked]


SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 11,
    "frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.5,
}  # fmt: skip


@pytest.mark.honours(
    "transcriptions.temperature", *(f"transcriptions.{each}" for each in SAMPLING),
    "transcriptions.max_completion_tokens", *(f"translations.{each}" for each in SAMPLING),
    "translations.max_completion_tokens",
)  # fmt: skip
@pytest.mark.parametrize("task", ["transcribe", "translate"])
async def test_sampling_fields_reach_each_window(task):
    model = Model()
    data = audio.wav(audio.WORDS)  # two windows
    job = await prepared(model, data, task, language="en", max_completion_tokens=9, **SAMPLING)
    assert len(job.requests) == 2
    for request in job.requests:
        found = {name: getattr(request.sampling_params, name) for name in SAMPLING}
        assert found == SAMPLING
        assert request.sampling_params.max_tokens == 9


async def test_defaults_are_greedy_and_fill_the_context():
    (request,) = (await prepared(Model(), language="en")).requests
    assert request.sampling_params.temperature == 0
    assert request.sampling_params.max_tokens == 448 - 3
    assert request.sampling_params.skip_special_tokens is False


@pytest.mark.honours("transcriptions.language", "translations.language")
async def test_language_and_task_are_in_the_prompt():
    for task in ("transcribe", "translate"):
        job = await prepared(Model(), None, task, language="German")
        expected = f"<|startoftranscript|><|de|><|{task}|>"
        assert job.requests[0].prompt == expected


async def test_language_is_detected_among_those_of_the_model():
    model = Model()
    found = await answered(model, response_format="verbose_json")
    assert model.asked[0].prompt == "<|startoftranscript|>"
    assert model.asked[0].sampling_params.allowed_token_ids == [2, 3, 4]
    assert model.asked[0].sampling_params.max_tokens == 1
    assert texts(model)[-1] == "<|startoftranscript|><|de|><|transcribe|>"
    assert found["language"] == "german"


async def test_language_of_a_translation_is_english():
    fields: dict[str, Any] = {"task": "translate", "response_format": "verbose_json"}

    assert (await answered(Model(), language="German", **fields))["language"] == "english"


async def test_times_are_asked_for_unless_tokens_are_reported():
    """Log probabilities are of each token, and times would be among them. A model without times is
    told so.
    """
    without = replace(WHISPER, timestamps=False)
    rows: list[tuple[Model, dict[str, Any], bool]] = [
        (Model(), {}, False),
        (Model(), {"include": ["logprobs"]}, True),
        (Model(without), {}, True),
    ]
    for model, more, marked in rows:
        (request,) = (await prepared(model, language="en", **more)).requests
        assert (request.prompt or "").endswith("<|notimestamps|>") == marked
        assert request.sampling_params.skip_special_tokens == marked


async def test_model_that_cannot_detect_hears_english():
    model = Model(WHISPER, "allowed_token_ids")
    await answered(model)
    assert texts(model) == ["<|startoftranscript|><|en|><|transcribe|>"]


async def test_english_only_model_gets_no_language():
    support = TranscriptionSupport(
        sample_rate=audio.RATE, window_seconds=4, languages=(), timestamps=True, translation=False
    )
    model = Model(support)
    await answered(model)
    assert texts(model) == ["<|startoftranscript|>"]
    with pytest.raises(InvalidRequest, match="does not translate"):
        await prepared(model, None, "translate")


@pytest.mark.honours("transcriptions.prompt", "translations.prompt")
@pytest.mark.parametrize("task", ["transcribe", "translate"])
async def test_prompt_precedes_each_window(task):
    model = Model()
    await prepared(model, None, task, language="en", prompt="Names: Ada")
    assert model.previous[-1] == "Names: Ada"


@pytest.mark.honours("transcriptions.timestamp_granularities", "transcriptions.response_format")
async def test_verbose_json_asks_for_times_and_silence():
    model = Model()
    found = await answered(
        model, language="en", response_format="verbose_json", timestamp_granularities=["segment"]
    )
    probe, request = model.asked
    assert probe.sampling_params.logprob_token_ids == [8]
    assert request.return_token_ids
    assert request.sampling_params.skip_special_tokens is False
    (segment,) = found["segments"]
    assert segment["no_speech_prob"] == pytest.approx(0.3679, abs=1e-4)
    assert segment["avg_logprob"] == -0.5
    assert (segment["start"], segment["end"], segment["text"]) == (0.0, 1.0, " n samples")
    assert found["usage"] == {"type": "duration", "seconds": 1}


@pytest.mark.honours("transcriptions.include")
async def test_include_adds_log_probabilities():
    found = await answered(Model(), language="en", include=["logprobs"])
    assert [each["token"] for each in found["logprobs"]] == [" n", " samples"]
    assert found["logprobs"][0]["bytes"] == list(b" n")
    assert "logprobs" not in await answered(Model(), language="en")


@pytest.mark.honours("transcriptions.stream", "translations.stream")
@pytest.mark.parametrize("task", ["transcribe", "translate"])
async def test_stream_has_the_same_text_as_the_whole_answer(task):
    data = audio.wav(audio.WORDS)
    whole = await complete(await prepared(Model(), data, task, language="en"))
    job = await prepared(Model(), data, task, language="en", stream="true")
    stream = TranscriptStream(job)
    sent = stream.start()
    async for burst in job.bursts():
        for window, deltas in burst:
            sent += stream.feed(window, deltas)
    assert stream.finished
    frames = (sent + stream.finish()).decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    events = [json.loads(each.removeprefix("data: ")) for each in frames[:-2]]
    assert isinstance(whole, dict)
    assert "".join(each["delta"] for each in events[:-1]) == whole["text"]
    assert events[-1]["text"] == whole["text"]
    assert events[-1]["usage"]["output_tokens"] == 4


@pytest.mark.refuses("transcriptions.timestamp_granularities", "transcriptions.include")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"timestamp_granularities": ["word"], "response_format": "verbose_json"},
         "timestamp_granularities"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities"),
        ({"include": ["logprobs"], "response_format": "text"}, "include"),
        ({"include": ["other"]}, "include[0]"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"stream": "perhaps"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "3"}, "temperature"),
        ({"seed": "1.5"}, "seed"),
        ({"language": "tlh"}, "language"),
    ],
)  # fmt: skip
async def test_invalid_field_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        await prepared(Model(), **fields)
    assert refused.value.param == param


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Forgetful(Model):
    """Keeps no requests."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Any, None]:
        assert request.audio is not None
        self.samples = ref(request.audio.samples.obj)
        async with aclosing(super().generate(request)) as bursts:
            async for burst in bursts:
                self.asked.clear()
                yield burst


@pytest.mark.usefixtures("no_collections")
async def test_samples_end_with_the_work_of_the_model():
    """However long the response takes, and without a collection."""
    budget, model = MemoryBudget(100_000), Forgetful()
    job = await prepared(model, audio.wav(["one"]), memory=RequestMemory(budget), language="en")
    counted = []
    await asyncio.sleep(0)  # the loop itself has the result of the decoder until then
    async for _ in job.bursts():
        counted.append(budget.used_bytes)

    assert (counted, budget.used_bytes) == ([8000 * 4] * 2, 0)
    assert model.samples() is None
    assert job.usage()["output_tokens"] == 2


async def test_audio_beyond_the_budget_is_refused():
    memory = RequestMemory(MemoryBudget(100_000, what="samples", setting="max-samples"))
    with pytest.raises(ServerOverloaded, match=r"samples .*--max-samples"):
        await prepared(Model(), audio.wav(["one"] * 9), memory=memory)
    assert memory.held_bytes == 0


async def test_audio_beyond_a_limit_names_the_limit():
    """If it is a setting. That of samples is a constant."""
    asked = FormReader(TranscriptionRequest).read({})
    model: Any = Model()
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"max_audio_seconds": 1}, 3, "invalid_audio"),
        ({"max_audio_samples": 9000}, 3, "invalid_audio"),
        ({"max_audio_bytes": 100}, 1, "request_too_large"),
        ({}, 0, "audio_too_short"),
    ]
    for limits, words, code in cases:
        serving = transcriptions(**limits)
        with pytest.raises(InvalidRequest) as refused:
            await serving.prepare(
                asked, audio.wav(["one"] * words), model, "transcribe",
                RequestMemory(MemoryBudget(10**9)),
            )  # fmt: skip
        assert (refused.value.param, refused.value.code) == ("file", code)
        settings = limits.keys() & Settings.model_fields.keys()
        assert all(f"({name})" in refused.value.message for name in settings)


REFUSED: dict[str, Any] = {
    "keywords": ["a"], "known_speaker_names": ["a"], "known_speaker_references": ["data:"],
    "languages": ["en"], "hotwords": "a", "length_penalty": "2", "n": "2", "vllm_xargs": "{}",
    "stream_continuous_usage_stats": "true", "to_language": "de", "use_beam_search": "true",
    "moderation": ["moderation[model]=guard"],
}  # fmt: skip
NOT_OF_TRANSLATIONS: dict[str, Any] = {
    "include": ["logprobs"],
    "timestamp_granularities": ["segment"],
    "chunking_strategy": "server_vad",
}


@pytest.mark.refuses(
    *(f"transcriptions.{each}" for each in REFUSED),
    *(f"translations.{each}" for each in [*REFUSED, *NOT_OF_TRANSLATIONS]),
)
async def test_field_that_has_no_effect_is_refused_by_name():
    for task in ("transcribe", "translate"):
        fields = REFUSED if task == "transcribe" else {**REFUSED, **NOT_OF_TRANSLATIONS}
        for name, value in fields.items():
            with pytest.raises(InvalidRequest) as refused:
                await prepared(Model(), None, task, **{name: value})
            assert refused.value.param == name


@pytest.mark.accepts(
    "transcriptions.chunking_strategy", "transcriptions.stream_include_usage",
    "translations.stream_include_usage",
)  # fmt: skip
async def test_field_that_asks_for_what_is_done_anyway_changes_nothing():
    plain = await answered(Model(), language="en")
    fields: dict[str, Any] = {"chunking_strategy": "auto", "stream_include_usage": "true"}
    assert await answered(Model(), language="en", **fields) == plain
    fields.pop("chunking_strategy")
    await prepared(Model(), None, "translate", **fields)


class Talkative(Model):
    """Writes 20,000 tokens, with a time after every second one, or their log probabilities."""

    TOKENS = 20_000

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Any, None]:
        if request.sampling_params.logprob_token_ids:
            async for burst in super().generate(request):
                yield burst
            return
        ids = [*range(1, self.TOKENS + 1)]
        delta = CompletionDelta(" n" * self.TOKENS, ids, "stop")
        if request.sampling_params.logprobs is not None:
            delta.logprobs = [{each: {"logprob": -0.5}} for each in ids]
        size = self.TOKENS // 50  # as much as a window has
        for start in range(0, self.TOKENS, size):
            part = slice(start, start + size)
            logprobs = None if delta.logprobs is None else delta.logprobs[part]
            ends: FinishReason | None = "stop" if part.stop == self.TOKENS else None
            yield [CompletionDelta(" n" * size, ids[part], ends, logprobs=logprobs)]

    def token_bytes(self, token_id: int) -> bytes | None:
        return b" n" if token_id % 2 else f"<|{token_id / 10_000:.2f}|>".encode()

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return " n" * len(ids)


LONG: list[dict[str, Any]] = [
    {"response_format": "verbose_json"},
    {"response_format": "srt"},
    {"response_format": "vtt"},
    {"include": ["logprobs"]},
]


@pytest.mark.parametrize("fields", LONG, ids=str)
async def test_long_transcription_leaves_the_event_loop_free(fields):
    """No step takes more CPU time than the 50 ms that any client's input may take."""
    longest_s, ended = 0.0, False

    async def watch() -> None:
        nonlocal longest_s
        began_s = time.thread_time()
        while not ended:
            await asyncio.sleep(0)
            longest_s, began_s = max(longest_s, time.thread_time() - began_s), time.thread_time()

    watching = asyncio.create_task(watch())
    written = await answered(Talkative(), language="en", **fields)
    ended = True
    await watching

    assert written
    assert longest_s < budget(0.05)
