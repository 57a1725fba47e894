"""Decodes and encodes audio with libsndfile, in a process of `media.pool`.

Samples are mono float32 at the rate that a model takes. Limits are checked against the header
before anything is decoded, and again against what is decoded, since a header can lie.
"""

import io
import struct
from collections.abc import Iterator, Mapping
from math import gcd, inf
from typing import TYPE_CHECKING, Any

import numpy

from openai_frontend.media.fork_server import Frames, Refused, Reply, Work

if TYPE_CHECKING:
    import soundfile

# Format by magic bytes -> libsndfile's names
FORMATS = {"wav": ("WAV", "WAVEX", "RF64"), "flac": ("FLAC",), "ogg": ("OGG",), "mp3": ("MP3",)}
PCM_RATE = 24_000  # Hz, of OpenAI's format `pcm`, which has no header
# Format of an answer -> libsndfile's format and subtype
_ENCODINGS = {
    "pcm": ("RAW", "PCM_16"),
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}
# Format of an answer -> the sample rates that it can have; another is raised to the next
_RATES = {
    "pcm": (PCM_RATE,),
    "opus": (8_000, 12_000, 16_000, 24_000, 48_000),
    "mp3": (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
}
MIN_RATE, MAX_RATE = 1_000, 384_000  # Hz, of a file
_BLOCK_SAMPLES = 1 << 18  # decoded at a time, of all channels
_SAMPLE_BYTES = 4  # float32
_WRITTEN_SAMPLES = 1 << 12  # encoded at a time: Vorbis and Opus keep a block on the stack
_FFT_SAMPLES = 1 << 17  # about as many are resampled at a time
_EDGE_S = 0.05  # resampled twice, on each side of a block
_SEARCHED = 0.25  # the part of a window, at its end, that may have the cut
_HOP_S, _QUIET_HOPS = 0.01, 10  # the energy of 0.1 s, every 10 ms

Samples = numpy.ndarray[Any, numpy.dtype[numpy.float32]]


def format_of(data: bytes) -> str | None:
    """The format by the first bytes of a file; None if it is none of `FORMATS`."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06
    return "mp3" if data[:3] == b"ID3" or is_frame else None


def decode(task: Mapping[str, Any], data: memoryview) -> tuple[dict[str, Any], Frames]:
    """Decode a file in the format `task["format"]` to `task["rate"]`.

    Returns `seconds`, and `cuts`: where pieces of at most `task["window_s"]` begin, in samples.
    Raises Refused beyond `max_seconds`, `model_max_seconds` or `max_samples` (of all channels).
    """
    import soundfile

    format, rate = task["format"], task["rate"]
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS[format]:
                raise Refused(f"it is {file.format}, but begins like {format.upper()}")
            _check(task, file.frames, file.samplerate, file.channels)
            mono = _mono(task, file)
            file_rate = file.samplerate
    except soundfile.SoundFileError:
        raise Refused(f"it cannot be decoded as {format.upper()}") from None
    if not numpy.isfinite(mono).all():
        raise Refused("it has samples that are not finite numbers")
    samples = resampled(mono, file_rate, rate)
    cuts = quiet_cuts(samples, rate, int(task["window_s"] * rate))
    return {"seconds": len(mono) / file_rate, "cuts": cuts}, [samples]


def _check(task: Mapping[str, Any], frames: int, rate: int, channels: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise Refused(f"its sample rate is {rate} Hz; supported are {MIN_RATE} to {MAX_RATE} Hz")
    if frames >= 1 << 62:  # libsndfile's mark for an unknown length
        return
    _check_length(task, frames / rate, frames * channels)


def _check_length(task: Mapping[str, Any], seconds: float, samples: int) -> None:
    for limit, name in (
        (task["max_seconds"], "max_audio_seconds"),
        (task.get("model_max_seconds", seconds), "the model's limit"),
    ):
        if seconds > limit:
            raise Refused(f"it is longer than {limit:g} s ({name}): {seconds:.1f} s")
    if samples > (most := task["max_samples"]):
        raise Refused(f"it has more than {most} samples: {samples}")


def _mono(task: Mapping[str, Any], file: "soundfile.SoundFile") -> Samples:
    """The mean of the channels, decoded in blocks."""
    blocks, done = [], 0
    size = max(1, _BLOCK_SAMPLES // file.channels)
    while len(block := file.read(size, dtype="float32", always_2d=True)):
        done += len(block)
        _check_length(task, done / file.samplerate, done * file.channels)
        blocks.append(block[:, 0] if file.channels == 1 else block.mean(axis=1))
    return numpy.concatenate(blocks) if blocks else numpy.empty(0, numpy.float32)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """The samples at another rate, without frequencies that it cannot have.

    Blocks are resampled by their spectrum; their edges, where a block lacks its neighbours, are
    dropped.
    """
    if rate == wanted:
        return samples
    common = gcd(rate, wanted)
    up, down = wanted // common, rate // common
    edge = max(1, round(rate * _EDGE_S / down)) * down
    size = max(1, (_FFT_SAMPLES - 2 * edge) // down) * down
    padded = numpy.pad(samples, (edge, edge + size))
    blocks = []
    for start in range(0, len(samples), size):
        block = padded[start : start + size + 2 * edge]
        block = numpy.pad(block, (0, size + 2 * edge - len(block)))
        changed = _through_spectrum(block, up, down)
        blocks.append(changed[edge // down * up : (edge + size) // down * up])
    length = -(-len(samples) * up // down)
    whole = numpy.concatenate(blocks) if blocks else samples
    return whole[:length].astype(numpy.float32)


def _through_spectrum(block: Samples, up: int, down: int) -> numpy.ndarray[Any, Any]:
    length = len(block) // down * up
    spectrum = numpy.fft.rfft(block)
    kept = min(len(spectrum), length // 2 + 1)
    faded = max(1, kept // 20)  # a sharp edge would ring
    spectrum[kept - faded : kept] *= 0.5 + 0.5 * numpy.cos(numpy.linspace(0, numpy.pi, faded))
    return numpy.fft.irfft(spectrum[:kept], length) * (up / down)


def quiet_cuts(samples: Samples, rate: int, window: int) -> list[int]:
    """The first sample of each piece of at most `window` samples: at the quietest place near the
    end of the window before it.
    """
    hop = max(1, int(rate * _HOP_S))
    cuts = [0]
    while len(samples) - cuts[-1] > window:
        end = cuts[-1] + window
        start = end - max(hop, int(window * _SEARCHED))
        hops = (end - start) // hop
        energy = numpy.square(samples[start : start + hops * hop]).reshape(hops, hop).sum(axis=1)
        width = min(_QUIET_HOPS, hops)
        loudness = numpy.convolve(energy, numpy.ones(width), "valid")
        cuts.append(start + (int(loudness.argmin()) * hop + width * hop // 2))
    return cuts


def encode(task: Mapping[str, Any], data: memoryview) -> tuple[dict[str, Any], Frames]:
    """Encode mono float32 samples of `task["rate"]` in `task["format"]`."""
    import soundfile

    format, rate = task["format"], task["rate"]
    samples = numpy.frombuffer(data, numpy.float32)
    rates = _RATES.get(format)
    if rates is not None and rate not in rates:
        wanted = next((each for each in rates if each >= rate), rates[-1])
        samples, rate = resampled(samples, rate, wanted), wanted
    written = io.BytesIO()
    container, subtype = _ENCODINGS[format]
    with soundfile.SoundFile(
        written, "w", rate, channels=1, format=container, subtype=subtype
    ) as file:
        for start in range(0, len(samples), _WRITTEN_SAMPLES):
            file.write(samples[start : start + _WRITTEN_SAMPLES])
    return {}, [written.getbuffer()]


def wav_header(rate: int) -> bytes:
    """The header of a WAV file of 16-bit mono samples that is written before its length is known:
    both lengths are the largest.
    """
    sizes = b"RIFF", b"\xff\xff\xff\xff", b"WAVEfmt "
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    return b"".join([*sizes, form, b"data\xff\xff\xff\xff"])


def _work(task: Mapping[str, Any], frames: Frames) -> tuple[Any, Frames]:
    (data,) = frames
    return (decode if task["work"] == "decode" else encode)(task, data)


def prepare(given: bytes) -> tuple[Any, Work]:
    """Each format once: a worker cannot open the files of what is loaded late."""
    silence = memoryview(bytes(16_000))
    task = {"rate": 16_000, "window_s": 1.0, "max_seconds": 9, "max_samples": 99_999}
    for kind in _ENCODINGS.keys() - {"pcm"}:
        _, (written,) = encode({"format": kind, "rate": 8_000}, silence)
        decode({**task, "format": "ogg" if kind == "opus" else kind}, written)
    return {}, _work


def check_reply(task: Mapping[str, Any], reply: Reply) -> None:
    """Raises ValueError, or what indexing raises, for a reply of another form."""
    outcome, (data,) = reply
    if task["work"] != "decode":
        return
    seconds, bounds = outcome["seconds"], [*outcome["cuts"], len(data) // _SAMPLE_BYTES]
    if type(seconds) not in (int, float) or not 0 <= seconds < inf:
        raise ValueError("seconds")
    if len(data) % _SAMPLE_BYTES or bounds[0] != 0 or bounds != sorted(bounds):
        raise ValueError("cuts")
    if not all(type(each) is int for each in bounds):
        raise TypeError("cuts")


def pieces(cuts: list[int], samples: int) -> Iterator[tuple[int, int]]:
    """The beginning and the end of each piece."""
    yield from zip(cuts, [*cuts[1:], samples], strict=True)
