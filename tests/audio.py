"""Sound whose words are tones, written as audio files, and read back from samples."""

import base64
import io
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

RATE = 16_000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GERMAN = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
WORD_S, PAUSE_S = 0.3, 0.2  # of a tone and the silence after it
_LOWEST_HZ, _STEP_HZ = 500, 150

Samples = numpy.ndarray[Any, Any]  # of float32


def spoken(words: Iterable[str], rate: int = RATE) -> Samples:
    """A tone for each word, of either language; `...` is a second of silence."""
    parts: list[Samples] = []
    for word in words:
        if word == "...":
            parts.append(numpy.zeros(rate, numpy.float32))
            continue
        at = (WORDS.index(word) if word in WORDS else GERMAN.index(word)) * _STEP_HZ + _LOWEST_HZ
        time_s = numpy.arange(int(rate * WORD_S)) / rate
        parts.append((0.5 * numpy.sin(2 * numpy.pi * at * time_s)).astype(numpy.float32))
        parts.append(numpy.zeros(int(rate * PAUSE_S), numpy.float32))
    return numpy.concatenate(parts) if parts else numpy.zeros(0, numpy.float32)


def heard(samples: Samples, rate: int = RATE, words: Sequence[str] = WORDS) -> list[str]:
    """The words of the tones, in order."""
    hop = rate // 50
    hops = len(samples) // hop
    loud = numpy.square(samples[: hops * hop]).reshape(hops, hop).mean(axis=1) > 1e-3
    edges = numpy.flatnonzero(numpy.diff(numpy.concatenate([[False], loud, [False]]).astype(int)))
    found = []
    for start, end in edges.reshape(-1, 2):
        if end - start < 4:  # a fragment of a tone at a cut
            continue
        part = samples[start * hop : end * hop]
        spectrum = numpy.abs(numpy.fft.rfft(part, rate))  # 1 Hz apart
        at = round((int(spectrum.argmax()) - _LOWEST_HZ) / _STEP_HZ)
        found.append(words[at] if 0 <= at < len(words) else "?")
    return found


def file(
    samples: Samples, format: str = "WAV", *, rate: int = RATE, channels: int = 1, subtype: str = ""
) -> bytes:
    """An audio file with the same samples in each channel."""
    import soundfile

    written = io.BytesIO()
    columns = numpy.repeat(samples[:, None], channels, axis=1)
    with soundfile.SoundFile(
        written, "w", rate, channels, format=format, subtype=subtype or None
    ) as out:
        for start in range(0, len(columns), 4096):  # longer blocks of Vorbis overflow its stack
            out.write(columns[start : start + 4096])
    return written.getvalue()


def wav(words: Iterable[str]) -> bytes:
    """A WAV file of the words."""
    return file(spoken(words))


def wav_header(rate: int, channels: int, data_bytes: int) -> bytes:
    """The header of a WAV file of 16-bit samples, whatever follows it."""
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * channels * 2, channels * 2, 16)
    size = struct.pack("<I", min(data_bytes + 36, 0xFFFFFFFF))
    return b"RIFF" + size + b"WAVEfmt " + form + b"data" + struct.pack("<I", data_bytes)


BOUNDARY = "b-7f3a"


def form(data: bytes | None, *fields: tuple[str, str]) -> bytes:
    """A form with `BOUNDARY`, with the data as its file."""
    parts = [_part(f'name="{name}"', value.encode()) for name, value in fields]
    if data is not None:
        parts.append(_part('name="file"; filename="a.wav"', data))
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def _part(disposition: str, value: bytes) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n"
    return head.encode() + value + b"\r\n"


def part(data: bytes, format: str = "wav", **more: Any) -> dict[str, Any]:
    """An `input_audio` part of a chat; `more` are its members beside the audio."""
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": format}, **more}


def url_part(data: bytes, mime_type: str = "audio/wav") -> dict[str, Any]:
    """vLLM's form of it, with a data URL."""
    url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "audio_url", "audio_url": {"url": url}}
