"""The demo speech model through the API, with OpenAI's client: every format, and streams."""

import io
import re
from typing import Any

import numpy
import openai
import pytest
import soundfile

from tests import recordings
from tests.recordings import SAMPLE_RATE, Recording

pytestmark = pytest.mark.engine

MODEL = "demo-speech"
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
