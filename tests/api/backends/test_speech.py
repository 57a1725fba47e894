"""Speech through NVIDIA's whisper_bls and a model that speaks, with OpenAI's client."""

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy
import openai
import pytest
import soundfile

from tests import audio
from tests.api.backends import repository
from tests.docs.documented_commands import BLOCK
from tests.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.slow  # the models are processes

FORMATS = (("WAV", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", ""))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("speech")
    models = folder / "models"
    models.mkdir()
    repository.write_whisper(models, "whisper", decoupled=True)
    repository.write_whisper(models, "whole", decoupled=False)
    repository.write_speech(models, "speaker", decoupled=True)
    repository.write_speech(models, "one_voice", decoupled=False, rate=22_050)
    repository.write_chat(models, "own_chat")
    stubs = "--backend-config=python:stub-timeout-seconds=600"
    with GatewayProcess(models, folder / "log", stubs) as process:
        process.wait_until_ready()
        yield process


@pytest.mark.honours("transcriptions.file", "transcriptions.model")
@pytest.mark.parametrize("model", ["whisper", "whole"])
def test_transcription_has_the_words_and_the_duration(client, model):
    said = client.audio.transcriptions.create(model=model, file=audio.wav(["one", "two", "three"]))
    assert said.text == "one two three"
    assert said.usage.type == "duration"
    assert said.usage.seconds == 2


@pytest.mark.parametrize(("format", "subtype"), FORMATS)
def test_file_formats_sample_rates_and_channels_are_converted(client, format, subtype):
    rate = 48_000 if subtype == "OPUS" else 44_100
    data = audio.file(
        audio.spoken(["five", "nine"], rate), format, rate=rate, channels=2, subtype=subtype
    )
    assert client.audio.transcriptions.create(model="whisper", file=data).text == "five nine"


def test_long_audio_is_cut_at_pauses_and_joined(client):
    """40 words of half a second are two windows of at most 10 s."""
    words = list(audio.WORDS) * 4
    assert client.audio.transcriptions.create(
        model="whisper", file=audio.wav(words)
    ).text == " ".join(words)


def test_stream_has_openais_events_in_the_order_of_the_audio(client):
    words = list(audio.WORDS) * 5
    events = list(
        client.audio.transcriptions.create(model="whisper", file=audio.wav(words), stream=True)
    )
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == " ".join(words)
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == " ".join(words)
    assert len(events) == len(deltas) + 1


@pytest.mark.honours("transcriptions.response_format", "translations.response_format")
def test_text_is_plain_text(client):
    said = client.audio.transcriptions.create(
        model="whisper", file=audio.wav(["one"]), response_format="text"
    )
    assert said == "one\n"


def test_language_is_part_of_the_prompt(client):
    data = audio.wav(["eins", "zwei"])
    german = client.audio.transcriptions.create(model="whisper", file=data, language="de")
    assert german.text == "eins zwei"
    named = client.audio.transcriptions.create(model="whisper", file=data, language="German")
    assert named.text == "eins zwei"


@pytest.mark.honours("translations.file", "translations.model")
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # by OpenAI's client
def test_translation_is_english(client):
    data = audio.wav(["eins", "zwei"])
    assert client.audio.translations.create(model="whisper", file=data).text == "one two"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "srt": ({"response_format": "srt"}, "response_format"),
    "vtt": ({"response_format": "vtt"}, "response_format"),
    "word": (
        {"response_format": "verbose_json", "timestamp_granularities": ["word"]},
        "timestamp_granularities",
    ),
    "segment": (
        {"response_format": "verbose_json", "timestamp_granularities": ["segment"]},
        "timestamp_granularities",
    ),
    "include": ({"include": ["logprobs"]}, "include"),
    "prompt": ({"prompt": "zero"}, "prompt"),
    "temperature": ({"temperature": 0.5}, "temperature"),
    "language": ({"language": "xx"}, "language"),
    "diarized": ({"response_format": "diarized_json"}, "response_format"),
    "vad": ({"chunking_strategy": {"type": "server_vad"}}, "chunking_strategy"),
    "speakers": ({"known_speaker_names": ["a"]}, "known_speaker_names"),
    "keywords": ({"extra_body": {"keywords": ["a"]}}, "keywords"),
    "model": ({"model": "own_chat"}, "model"),
}


@pytest.mark.refuses(
    "transcriptions.chunking_strategy", "transcriptions.known_speaker_names",
    "transcriptions.keywords", "transcriptions.response_format", "transcriptions.prompt",
    "transcriptions.temperature", "transcriptions.language",
)  # fmt: skip
@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_field_is_refused_by_name(client, case):
    fields, param = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(
            **{"model": "whisper", "file": audio.wav(["one"]), **fields}
        )
    assert refused.value.param == param


def test_model_without_streams_refuses_to_stream(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.transcriptions.create(model="whole", file=audio.wav(["one"]), stream=True)
    assert refused.value.param == "stream"


def test_failure_of_the_model_shows_no_traceback(gateway):
    """The stand-in fails on a tone that is no word, and like NVIDIA's sends its traceback."""
    url = f"{gateway.url}/v1/audio/transcriptions"
    tone = 0.9 * numpy.sin(2 * numpy.pi * 7000 * numpy.arange(8000) / audio.RATE)
    files = {"file": ("a.wav", audio.file(tone.astype("f4")))}
    response = httpx.post(url, files=files, data={"model": "whisper"}, timeout=60)
    assert response.status_code == 500
    assert "Traceback" not in response.text
    assert "standins" not in response.text


def test_models_state_what_they_do(client):
    models = {each.id: each.to_dict() for each in client.models.list()}
    assert models["whisper"]["capabilities"]["transcription"] is True
    assert models["whisper"]["capabilities"]["chat"] is False
    assert models["whisper"]["audio"]["window_seconds"] == 10
    assert "de" in models["whisper"]["audio"]["languages"]
    assert models["speaker"]["capabilities"]["speech"] is True
    assert models["own_chat"]["audio"] is None


@pytest.mark.honours("speech.input", "speech.model", "speech.response_format")
@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus", "pcm"])
@pytest.mark.parametrize("model", ["speaker", "one_voice"])
def test_speech_has_the_words_in_each_format(client, model, format):
    text = "three one four"
    answer = client.audio.speech.create(
        model=model, voice="default", input=text, response_format=format
    )
    data = answer.read()
    if format == "pcm":
        samples, rate = numpy.frombuffer(data, "<i2").astype("f4") / 32768, 24_000
    else:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    assert audio.heard(samples, rate) == text.split()


@pytest.mark.honours("speech.stream_format")
def test_waveform_is_streamed_as_it_comes(gateway):
    """The first word arrives in a piece of its own."""
    body = {"model": "speaker", "input": "one two three", "response_format": "pcm"}
    body["stream_format"] = "audio"
    with httpx.stream("POST", f"{gateway.url}/v1/audio/speech", json=body, timeout=60) as response:
        assert response.headers["content-type"] == "audio/pcm"
        pieces = list(response.iter_raw())
    assert len(pieces) > 1
    samples = numpy.frombuffer(b"".join(pieces), "<i2").astype("f4") / 32768
    assert audio.heard(samples, 24_000) == ["one", "two", "three"]


@pytest.mark.honours("speech.voice", "speech.voice.id", "speech.speed")
def test_voice_and_speed_reach_mapped_inputs(client):
    def loudness(**fields):
        answer = client.audio.speech.create(
            model="speaker", input="one two", response_format="pcm", **fields
        )
        samples = numpy.frombuffer(answer.read(), "<i2").astype("f4") / 32768
        return float(numpy.abs(samples).max()), len(samples)

    loud, length = loudness(voice="default")
    quiet, _ = loudness(voice="whisper")
    assert loudness(voice={"id": "whisper"})[0] == quiet
    _, shorter = loudness(voice="default", speed=2.0)
    assert quiet == pytest.approx(loud / 4, rel=0.01)
    assert shorter == length // 2


SPEECH_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "voice": ({"model": "one_voice", "voice": "alloy"}, "voice"),
    "speed": ({"model": "one_voice", "speed": 2.0}, "speed"),
    "instructions": ({"instructions": "slowly"}, "instructions"),
    "aac": ({"response_format": "aac"}, "response_format"),
    "sse": ({"stream_format": "sse"}, "stream_format"),
    "text model": ({"model": "own_chat"}, "model"),
    "long": ({"input": "one " * 1100}, "input"),
    "guard": ({"extra_body": {"moderation": {"model": "guard"}}}, "moderation"),
}


@pytest.mark.refuses(
    "speech.voice", "speech.speed", "speech.instructions", "speech.response_format",
    "speech.stream_format", "speech.moderation",
)  # fmt: skip
@pytest.mark.parametrize("case", SPEECH_REFUSED)
def test_unsupported_field_of_speech_is_refused_by_name(client, case):
    fields, param = SPEECH_REFUSED[case]
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(
            **{"model": "speaker", "voice": "default", "input": "one", **fields}
        )
    assert refused.value.param == param


@pytest.mark.parametrize("format", ["mp3", "pcm", "wav"])
def test_failure_before_the_first_sample_has_its_status(client, format):
    with pytest.raises(openai.InternalServerError):
        client.audio.speech.create(
            model="speaker", voice="default", input="hello", response_format=format
        )


def test_failure_after_the_first_sample_breaks_the_connection(gateway):
    """Audio that ends early must not look complete."""
    body = {"model": "speaker", "input": "one hello", "response_format": "pcm"}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{gateway.url}/v1/audio/speech", json=body, timeout=60)


def test_documented_examples_run(gateway, tmp_path, monkeypatch, capsys):
    """docs/speech.md, with this server's port."""
    page = (ROOT / "docs" / "speech.md").read_text()
    code = "".join(text for language, text in BLOCK.findall(page) if language == "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meeting.wav").write_bytes(audio.wav(["six", "two"]))
    exec(code.replace("http://127.0.0.1:9000", gateway.url), {})  # noqa: S102  our own page
    assert capsys.readouterr().out == "six two\n"
    samples, rate = soundfile.read(tmp_path / "spoken.wav", dtype="float32")
    assert audio.heard(samples, rate) == ["one", "two", "three"]


def test_example_of_the_api_document_runs(gateway):
    """The one on /docs, for the model that it names."""
    document = httpx.get(f"{gateway.url}/openapi.json").json()
    body = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]
    for example in body["content"]["application/json"]["examples"].values():
        spoken = httpx.post(f"{gateway.url}/v1/audio/speech", json=example["value"], timeout=60)
        assert spoken.status_code == 200, spoken.text
        assert spoken.content[:4] == b"RIFF"


def test_verbose_json_of_a_model_without_times_has_no_segments(client):
    said = client.audio.transcriptions.create(
        model="whisper", file=audio.wav(["one"]), response_format="verbose_json"
    )
    assert (said.language, said.duration, said.text) == ("english", 0.5, "one")
    assert said.segments is None


def test_seconds_of_audio_are_counted(gateway, client):
    client.audio.transcriptions.create(model="whole", file=audio.wav(["one"] * 4))
    metrics = httpx.get(f"{gateway.url}/metrics").text
    name = 'openai_frontend_audio_seconds_total{direction="input",model="whole"}'
    line = next(each for each in metrics.splitlines() if each.startswith(name))
    assert float(line.split()[-1]) >= 2.0
