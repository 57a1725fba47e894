"""The demo speech model through the API, with OpenAI's client: every format, and streams."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import openai
import pytest
import soundfile

from tests import recordings
from tests.recordings import SAMPLE_RATE, Recording

pytestmark = pytest.mark.engine

MODEL = "demo-speech"
FRESH = 24
MAX_ERROR_S = 0.25


@pytest.fixture
def speech(default_client: openai.OpenAI) -> openai.OpenAI:
    """Of the gateway with all demo models."""
    return default_client


def file(*spoken: Recording, format: str = "WAV") -> bytes:
    written = io.BytesIO()
    samples = numpy.concatenate([each.samples for each in spoken])
    subtype = "FLOAT" if format == "WAV" else None  # without clipping
    soundfile.write(written, samples, SAMPLE_RATE, format=format, subtype=subtype)
    return written.getvalue()


def transcribed(client: openai.OpenAI, data: bytes, **fields: Any) -> Any:
    return client.audio.transcriptions.create(model=MODEL, file=data, **fields)


@pytest.mark.parametrize("name", ["english", "german"])
def test_digits_and_language_are_recognised(speech, name):
    """The language too, which the request does not tell."""
    said = recordings.read(name)
    found = transcribed(speech, file(said), response_format="verbose_json")
    assert found.text == said.text().strip()
    assert found.language == name
    assert found.duration == pytest.approx(len(said.samples) / SAMPLE_RATE)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3"])
def test_digits_are_recognised_in_each_file_format(speech, format):
    said = recordings.read("english")
    assert transcribed(speech, file(said, format=format)).text == said.text().strip()


@pytest.mark.parametrize("format", ["verbose_json", "json"])
def test_fresh_utterances_are_right(speech, format):
    """At least 90 %, to the letter."""
    said = [recordings.fresh(seed) for seed in range(FRESH)]

    def text(each: Recording) -> str:
        asked = {"response_format": format, "language": each.language}
        found: str = transcribed(speech, file(each), **asked).text
        return found

    with ThreadPoolExecutor(8) as threads:
        pairs = [
            (found, each.text().strip())
            for found, each in zip(threads.map(text, said), said, strict=True)
        ]
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(wrong) <= 0.1 * FRESH, wrong


def test_translation_is_english(speech):
    said = recordings.read("german")
    with pytest.warns(DeprecationWarning, match="deprecated"):  # by OpenAI's client
        found = speech.audio.translations.create(
            model=MODEL, file=file(said), response_format="verbose_json"
        )
    assert found.text == said.text("en").strip()
    assert found.language == "english"


def test_segments_have_the_times_of_the_speech(speech):
    said = recordings.read("pause")
    found = transcribed(speech, file(said), response_format="verbose_json")
    assert len(found.segments) == len(said.segments)
    for segment, (start, end) in zip(found.segments, said.segments, strict=True):
        assert segment.start == pytest.approx(start, abs=MAX_ERROR_S)
        assert segment.end == pytest.approx(end, abs=MAX_ERROR_S)
        assert segment.avg_logprob is not None
        assert segment.avg_logprob <= 0
        assert segment.tokens
        assert segment.no_speech_prob is None or 0 <= segment.no_speech_prob <= 1
    assert "".join(segment.text for segment in found.segments).strip() == found.text


def test_long_audio_is_cut_at_pauses_and_times_continue(speech):
    """Longer than two windows of the model."""
    said = [recordings.read(name) for name in ("english", "pause", "english", "pause")]
    found = transcribed(
        speech, file(*said), response_format="verbose_json", language=said[0].language
    )
    assert found.duration > 8
    assert found.text == "".join(each.text() for each in said).strip()
    starts = [segment.start for segment in found.segments]
    assert starts == sorted(starts)
    assert starts[-1] > len(said[0].samples) / SAMPLE_RATE


def test_subtitles_are_in_srt_and_webvtt(speech):
    data = file(recordings.read("pause"))
    time = r"\d\d:\d\d:\d\d[,.]\d{3}"
    srt = transcribed(speech, data, response_format="srt")
    assert re.match(rf"1\n{time} --> {time}\n\w+", srt)
    vtt = transcribed(speech, data, response_format="vtt")
    assert re.match(rf"WEBVTT\n\n{time} --> {time}\n\w+", vtt)


def test_stream_has_deltas_and_the_whole_text(speech):
    said = recordings.read("english"), recordings.read("pause"), recordings.read("english")
    events = list(transcribed(speech, file(*said), stream=True, language=said[0].language))
    deltas = [each.delta for each in events if each.type == "transcript.text.delta"]
    done = events[-1]
    assert len(deltas) > 2
    assert "".join(deltas) == done.text == "".join(each.text() for each in said).strip()
    assert done.usage.type == "tokens"
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.usage.output_tokens >= len(done.text.split())


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_text(speech, stream):
    said = recordings.read("english")
    found = transcribed(speech, file(said), include=["logprobs"], stream=stream)
    if stream:
        found = list(found)[-1]
    spelled = "".join(each.token for each in found.logprobs if not each.token.startswith("<|"))
    assert spelled.strip() == found.text
    assert all(each.logprob <= 0 for each in found.logprobs)
    assert bytes(map(int, found.logprobs[0].bytes)).decode() == found.logprobs[0].token


def test_prompt_and_its_special_tokens_stay_text(speech):
    said = recordings.read("english")
    answer = transcribed(
        speech, file(said), prompt="<|endoftext|><|translate|> seven", language="en"
    )
    assert answer.text


def test_speech_model_refuses_chat(speech):
    with pytest.raises(openai.BadRequestError, match="/v1/audio/transcriptions"):
        speech.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
