"""Audio in chats with the real engine, through HTTP and OpenAI's client, beside vLLM's own path."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from openai_frontend.app import create_app
from openai_frontend.config.settings import Settings
from openai_frontend.engines.vllm import capabilities
from openai_frontend.generation import merge_deltas
from openai_frontend.triton import Server, inprocess
from openai_frontend.triton.responses import TensorInput
from tests import audio
from tests.api.kserve.conftest import listening
from tests.core.triton import generation_inputs
from tests.vllm import tiny_audio_model
from tests.vllm.conftest import Models, needs, needs_step_loop
from tests.vllm.requests import collect, contract, request

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    needs(capabilities.AUDIO),
    needs(capabilities.IMAGES),
]

MODEL = "hears"
PLACE = "messages[0].content[0].input_audio.data"
ONE, TWO = audio.wav(["one", "two"]), audio.wav(["three", "seven", "nine"])
TEXT = {"type": "text", "text": "what?"}
SOUND = "<|audio_bos|><|AUDIO|><|audio_eos|>\n"
END = "<|im_end|>\n<|im_start|>assistant\n"
PROMPT = f"<|im_start|>user\nAudio 1: {SOUND}what?{END}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(models_beside: Models) -> AsyncIterator[Server]:
    """The core, with a model that hears."""
    tiny_audio_model.write(models_beside.repository / MODEL)
    async with models_beside.loaded(MODEL) as core:
        yield core


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(server: Server, repository: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of a gateway over the core."""
    app = create_app(Settings(model_repository=[repository]), server)
    await app.state.registry.refresh()
    async with (
        listening(app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made
    app.state.registry.close()


async def ask(client: openai.AsyncOpenAI, *parts: Any, **more: Any) -> Any:
    extra = {"return_token_ids": True, "ignore_eos": True, **more.pop("extra_body", {})}
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": list(parts)}], max_tokens=16,
        temperature=0, extra_body=extra, **more,
    )  # fmt: skip


async def answered(client: openai.AsyncOpenAI, *parts: Any, **more: Any) -> list[int]:
    answer = await ask(client, *parts, **more)
    ids: list[int] = answer.choices[0].token_ids
    return ids


def engine() -> Any:
    host: Any = inprocess.handle(MODEL)
    return host._engine


def runs() -> int:
    """How often a file was decoded."""
    found: int = engine()._media.caches[0]._pool.runs
    return found


async def of_vllm(prompt: str, *files: bytes) -> Sequence[int]:
    """The answer of vLLM's own renderer and processor, which get the samples."""
    import soundfile
    from vllm import SamplingParams

    client = engine()._engine
    ids = client.input_processor.tokenizer.encode(prompt, add_special_tokens=False)
    sounds = [soundfile.read(io.BytesIO(each), dtype="float32") for each in files]
    asked = {"prompt_token_ids": ids, "multi_modal_data": {"audio": sounds}}
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    async for output in client.generate(asked, params, "vllms-own"):
        answer: Sequence[int] = output.outputs[0].token_ids
    return answer


@pytest.mark.parametrize("data", [ONE, TWO], ids=["one", "two"])
async def test_answer_is_that_of_vllms_own_path(client, data):
    assert await answered(client, audio.part(data), TEXT) == [*await of_vllm(PROMPT, data)]


async def test_answer_depends_on_the_audio_and_its_order(client):
    """Two files in a message, interleaved with text, and in other turns."""
    one, two = audio.part(ONE), audio.part(TWO)

    answers = [
        await answered(client, *parts)
        for parts in ([one, TEXT], [two, TEXT], [TEXT], [one, TEXT, two], [two, TEXT, one])
    ]

    assert len({tuple(each) for each in answers}) == 5
    both = f"<|im_start|>user\nAudio 1: {SOUND}what?Audio 2: {SOUND}{END}"
    assert answers[3] == [*await of_vllm(both, ONE, TWO)]


async def test_formats_give_the_same_audio(client):
    """FLAC has the samples of the WAV. Another rate and two channels change them little."""
    samples = audio.spoken(["one", "two"])
    flac, stereo = audio.file(samples, "FLAC"), audio.file(samples, channels=2)

    found = [
        await answered(client, part, TEXT)
        for part in (
            audio.part(ONE), audio.part(flac, "flac"), audio.part(stereo), audio.url_part(ONE)
        )
    ]  # fmt: skip

    assert found == [found[0]] * 4
    mp3 = audio.part(audio.file(samples, "MP3"), "mp3")
    assert (await ask(client, mp3, TEXT)).usage.prompt_tokens_details.audio_tokens > 20


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_counts_the_tokens_of_audio(client, stream):
    """25 a second."""
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await ask(client, audio.part(ONE), TEXT, stream=stream, **options)
    usage = [each async for each in answer][-1].usage if stream else answer.usage

    assert usage.prompt_tokens_details.audio_tokens == 25
    assert usage.prompt_tokens == 35 + 25


async def test_model_states_what_it_takes(client, server):
    """Its longest audio is that of vLLM's own dummy."""
    described = (await client.models.retrieve(MODEL)).model_dump()

    assert (described["capabilities"]["audio"], described["capabilities"]["chat"]) == (True, True)
    assert described["input_audio"]["max_audio_seconds"] == tiny_audio_model.MAX_SECONDS
    assert described["input_audio"]["max_audio_files"] == tiny_audio_model.MAX_FILES
    assert described["input_audio"]["max_tokens_per_audio"] == tiny_audio_model.MAX_TOKENS
    placeholder = server.model_facts(MODEL).audio.placeholder
    assert placeholder == "Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>"


async def test_known_audio_is_not_decoded_again(client):
    """In another question, twice in a request, and while the first run is under way."""
    before, part = runs(), audio.part(audio.wav(["zero", "eight"]))

    await asyncio.gather(*(ask(client, part, TEXT) for _ in range(4)))
    await ask(client, part, part)

    assert runs() - before == 1


async def heard_s(client: openai.AsyncOpenAI) -> float:
    """Seconds of audio that /metrics counts for the model."""
    async with httpx.AsyncClient(base_url=str(client.base_url).removesuffix("/v1/")) as http:
        families = text_string_to_metric_families((await http.get("/metrics")).text)
    [family] = [each for each in families if each.name == "openai_frontend_audio_seconds"]
    return sum(
        each.value
        for each in family.samples
        if (each.labels["model"], each.labels["direction"]) == (MODEL, "input")
    )


async def test_seconds_are_counted_for_each_choice(client):
    """Of new and known audio; not of audio that was refused."""
    before, part = await heard_s(client), audio.part(audio.wav(["six", "six", "six"]))

    await ask(client, part, audio.part(ONE), TEXT)  # 1.5 s and 1 s
    await ask(client, part, TEXT, n=2)
    with pytest.raises(openai.BadRequestError):
        await ask(client, part, audio.part(silence(31)))

    assert await heard_s(client) - before == pytest.approx(1.5 + 1 + 2 * 1.5)


@needs_step_loop
async def test_audio_that_the_engine_lost_is_sent_again(client):
    """The client does not notice."""
    part = audio.part(audio.wav(["four", "five"]))
    expected = await answered(client, part, TEXT)
    sent = engine()._steps._media
    resends = sent.resends

    await engine()._engine.engine_core.reset_mm_cache_async()

    salted = {"cache_salt": "new"}  # else the prefix cache has it
    assert await answered(client, part, TEXT) == expected
    assert await answered(client, part, TEXT, extra_body=salted) == expected
    assert sent.resends - resends <= 2
    assert not sent.unanswered


def silence(seconds: float, rate: int = tiny_audio_model.RATE) -> bytes:
    return audio.file(np.zeros(int(seconds * rate), np.float32), rate=rate)


REFUSED = {
    "too long": (silence(31), "it is longer than 30 s (the model's limit): 31.0 s"),
    "too short": (silence(0.05), "it is shorter than 0.1 s: 0.050 s"),
    "truncated": (ONE[:30], "it cannot be decoded as WAV"),
    "rate": (silence(1, 500_000), "its sample rate is 500000 Hz"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), REFUSED.values(), ids=REFUSED)
async def test_unusable_audio_fails_its_request_alone(client, data, words):
    """The error names the part and the limit; a request at the same time is answered."""
    found: Any = await asyncio.gather(
        ask(client, audio.part(ONE), TEXT), ask(client, audio.part(data)), return_exceptions=True
    )

    good, bad = found
    assert good.choices[0].token_ids
    assert isinstance(bad, openai.BadRequestError)
    assert (bad.param, bad.code) == (PLACE, "invalid_audio")
    assert words in bad.message
    assert engine().stats().running == 0


async def test_prompt_of_ids_needs_audio_for_each_placeholder(client):
    """A completion has none."""
    placeholder = engine()._media.audio_files.target

    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model=MODEL, prompt=[40, *placeholder])

    assert "1 audio placeholders" in refused.value.message


async def test_tokens_say_where_audio_stands(client):
    """One placeholder for each file, whose tokens depend on its length."""
    asked = {
        "model": MODEL, "messages": [{"role": "user", "content": [audio.part(ONE), TEXT]}]
    }  # fmt: skip
    root = str(client.base_url).removesuffix("/v1/")
    async with httpx.AsyncClient(base_url=root) as http:
        tokens = (await http.post("/tokenize", json=asked)).json()["tokens"]
        rendered = (await http.post("/v1/chat/completions/render", json=asked)).json()

    assert rendered["token_ids"] == tokens
    assert rendered["prompt"] == PROMPT
    target = engine()._media.audio_files.target
    assert [each for each in tokens if each in target] == target


async def test_key_of_audio_is_its_base64_text(server):
    """A client of KServe without `media_info`: the engine finds the format and the digest."""
    encoded = base64.b64encode(ONE).decode()
    asked = request(PROMPT, max_tokens=16, ignore_eos=True)
    inputs: dict[str, TensorInput] = {**contract(server, MODEL).encode(asked)}
    inputs["audio_file"] = generation_inputs.text(encoded)
    stream = server.infer(MODEL, inputs, request_id="test")
    answer = merge_deltas(await collect(server, MODEL, stream, asked))

    assert answer.counts is not None
    assert answer.counts.audio_tokens == 25
