"""Audio is decoded, resampled and cut at pauses, within limits that no header can lift."""

import struct
from typing import Any

import numpy
import pytest

from openai_frontend.media.audio import (
    check_reply,
    decode,
    encode,
    format_of,
    pieces,
    quiet_cuts,
    resampled,
)
from openai_frontend.media.fork_server import Refused
from tests import audio

TASK: dict[str, Any] = {
    "rate": audio.RATE,
    "window_s": 10.0,
    "max_seconds": 5,
    "max_samples": 1_000_000,
}


def decoded(data: bytes, **changed: Any) -> tuple[dict[str, Any], audio.Samples]:
    format = format_of(data)
    outcome, (samples,) = decode({**TASK, "format": format, **changed}, memoryview(data))
    return outcome, numpy.frombuffer(samples, numpy.float32)


def tone(seconds: float, rate: int, hertz: float) -> audio.Samples:
    time_s = numpy.arange(int(seconds * rate)) / rate
    return (0.5 * numpy.sin(2 * numpy.pi * hertz * time_s)).astype(numpy.float32)


@pytest.mark.parametrize(
    ("format", "subtype", "label"),
    [
        ("WAV", "PCM_U8", "wav"), ("WAV", "PCM_16", "wav"), ("WAV", "PCM_24", "wav"),
        ("WAV", "FLOAT", "wav"), ("WAV", "ULAW", "wav"), ("WAVEX", "PCM_16", "wav"),
        ("FLAC", "PCM_24", "flac"), ("OGG", "VORBIS", "ogg"), ("OGG", "OPUS", "ogg"),
        ("MP3", "MPEG_LAYER_III", "mp3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 2])
def test_file_has_the_words_that_were_written(format, subtype, label, channels):
    words = ["seven", "zero", "nine"]
    data = audio.file(
        audio.spoken(words, 48_000), format, rate=48_000, channels=channels, subtype=subtype
    )
    outcome, samples = decoded(data)
    assert format_of(data) == label
    assert audio.heard(samples) == words
    assert outcome["seconds"] == pytest.approx(1.5, abs=0.06)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 44_101])
def test_resampling_keeps_tones(rate):
    """To a millionth in the middle, and the length to a sample."""
    written, wanted = resampled(tone(4, rate, 440), rate, 16_000), tone(4, 16_000, 440)
    assert len(written) == len(wanted)
    assert numpy.abs(written - wanted)[1600:-1600].max() < 1e-5


def test_resampling_removes_what_the_rate_cannot_have():
    """12 kHz would be heard as 4 kHz."""
    assert numpy.abs(resampled(tone(2, 48_000, 12_000), 48_000, 16_000)[1600:-1600]).max() < 1e-4


def test_blocks_of_resampling_join_without_a_seam():
    written = resampled(tone(20, 44_100, 1000), 44_100, 16_000)
    assert numpy.abs(written - tone(20, 16_000, 1000))[1600:-1600].max() < 1e-5


def test_pieces_begin_in_pauses():
    samples = audio.spoken(audio.WORDS * 5)  # 25 s, a pause in each half second
    cuts = quiet_cuts(samples, audio.RATE, 4 * audio.RATE)
    found = list(pieces(cuts, len(samples)))
    assert found[0][0] == 0
    assert found[-1][1] == len(samples)
    assert all(3 * audio.RATE <= end - start <= 4 * audio.RATE for start, end in found[:-1])
    assert [word for start, end in found for word in audio.heard(samples[start:end])] == list(
        audio.WORDS * 5
    )


def test_short_audio_is_one_piece():
    assert quiet_cuts(tone(4, 16_000, 440), 16_000, 4 * 16_000) == [0]


def test_header_beyond_the_limit_is_refused():
    data = audio.wav_header(audio.RATE, 1, 6 * audio.RATE * 2) + bytes(6 * audio.RATE * 2)
    with pytest.raises(Refused, match=r"longer than 5 s \(max_audio_seconds\): 6\.0 s"):
        decoded(data)
    wide = audio.file(tone(1, 48_000, 440), rate=48_000, channels=24)
    with pytest.raises(Refused, match=r"more than 1000000 samples: "):
        decoded(wide)


def test_lying_header_does_not_lift_the_limit():
    """A FLAC file of 6 s that says 1 s: what is decoded counts."""
    data = bytearray(audio.file(tone(6, audio.RATE, 440), "FLAC"))
    (said,) = struct.unpack(">Q", data[18:26])
    assert said & 0xFFFFFFFFF == 6 * audio.RATE
    data[18:26] = struct.pack(">Q", said - 5 * audio.RATE)
    try:
        outcome, _ = decoded(bytes(data))
    except Refused:
        return
    assert outcome["seconds"] <= 5


def test_wav_that_says_an_hour_has_the_seconds_that_are_there():
    data = audio.wav_header(audio.RATE, 1, 3600 * audio.RATE * 2) + bytes(audio.RATE * 2)
    assert decoded(data)[0]["seconds"] == 1.0


INVALID = {
    "empty": b"",
    "text": b"hello",
    "header alone": audio.wav_header(audio.RATE, 1, 100)[:30],
    "MP4": b"\x00\x00\x00\x18ftypmp42" + bytes(100),
    "WebM": b"\x1aE\xdf\xa3" + bytes(100),
    "AAC": b"\xff\xf1" + bytes(100),
    "FLAC of nothing": b"fLaC" + bytes(100),
    "OGG of nothing": b"OggS" + bytes(100),
    "MP3 of nothing": b"ID3" + bytes(100),
    "WAV of nothing": b"RIFF\x10\0\0\0WAVE" + bytes(100),
}


@pytest.mark.parametrize("name", INVALID)
def test_file_that_is_no_audio_is_refused(name):
    data = INVALID[name]
    if format_of(data) is None:
        return
    with pytest.raises(Refused):
        decoded(data)


def test_formats_are_known_by_their_first_bytes():
    unknown = {name for name, data in INVALID.items() if format_of(data) is None}
    assert unknown == {"empty", "text", "MP4", "WebM", "AAC"}


def test_sample_rate_out_of_range_is_refused():
    data = audio.wav_header(10, 1, 20_000) + bytes(20_000)
    with pytest.raises(Refused, match="its sample rate is 10 Hz"):
        decoded(data)


def test_samples_that_are_not_finite_are_refused():
    samples = tone(1, audio.RATE, 440)
    samples[5] = numpy.nan
    with pytest.raises(Refused, match="not finite"):
        decoded(audio.file(samples, subtype="FLOAT"))


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus"])
def test_encoded_speech_is_decoded_to_the_same_words(format):
    words = ["four", "two"]
    samples = audio.spoken(words, 22_050)
    _, (written,) = encode({"format": format, "rate": 22_050}, memoryview(samples.tobytes()))
    assert audio.heard(decoded(bytes(written))[1]) == words


@pytest.mark.parametrize(
    "reply",
    [
        ({"seconds": 1.0, "cuts": [0]}, []),
        ({"seconds": 1.0, "cuts": [0]}, [bytes(4)] * 2),
        ({"seconds": 1.0, "cuts": [0]}, [bytes(5)]),
        ({"seconds": 1.0}, [bytes(8)]),
        ({"seconds": "1", "cuts": [0]}, [bytes(8)]),
        ({"seconds": float("nan"), "cuts": [0]}, [bytes(8)]),
        ({"seconds": -1, "cuts": [0]}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": []}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": [1]}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": [0, 3]}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": [0, 2, 1]}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": [0, 1.5]}, [bytes(8)]),
        ({"seconds": 1.0, "cuts": "0"}, [bytes(8)]),
    ],
)
def test_replies_of_another_form_are_refused(reply):
    """They come from a decoder that a file has taken over; none may reach the request."""
    with pytest.raises((ValueError, TypeError, LookupError)):
        check_reply({"work": "decode"}, reply)
    check_reply({"work": "decode"}, ({"seconds": 1.0, "cuts": [0, 1]}, [memoryview(bytes(8))]))
