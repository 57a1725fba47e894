"""An audio file: samples within the limits, or a refusal, from the process that decodes it.

libsndfile may crash there: that is a refusal too. Nothing may harm this process.
"""

import atexit
from functools import cache
from itertools import pairwise

import numpy

from openai_frontend.media.audio import format_of
from openai_frontend.media.pool import WorkerPool
from tests import audio

RATE, MAX_SECONDS = 8_000, 2
TASK = {
    "work": "decode",
    "rate": RATE,
    "window_s": 0.5,
    "max_seconds": MAX_SECONDS,
    "max_samples": 100_000,
}
WORDS = ("RIFF", "WAVE", "fmt ", "data", "fact", "fLaC", "OggS", "OpusHead", "vorbis", "ID3", "TAG")
_TONE = audio.spoken(["one"], RATE)[:1600]
SEEDS = (
    audio.wav_header(RATE, 1, 200) + bytes(200),
    audio.wav_header(RATE, 2, 0xFFFFFFFF) + bytes(400),
    audio.wav_header(1, 32_767, 100) + bytes(100),
    *(audio.file(_TONE, format, rate=RATE) for format in ("WAV", "FLAC", "OGG", "MP3")),
    audio.file(_TONE, "OGG", rate=RATE, subtype="OPUS"),
)


@cache
def _pool() -> WorkerPool:
    pool = WorkerPool("openai_frontend.media.audio", processes=1, timeout_s=20, memory_mib=256)
    atexit.register(pool.close)
    return pool


def check(data: bytes) -> None:
    if (format := format_of(data)) is None:
        return
    try:
        outcome, (samples,) = _pool().submit({**TASK, "format": format}, [data]).result()
    except ValueError as error:
        assert len(str(error)) < 200
        return
    count = len(samples) // 4
    assert count <= RATE * MAX_SECONDS + 1
    assert outcome["seconds"] <= MAX_SECONDS
    values = numpy.frombuffer(samples, numpy.float32)
    assert numpy.isfinite(values).all()
    cuts = [*outcome["cuts"], count]
    assert cuts[0] == 0
    assert all(0 <= end - start <= RATE / 2 for start, end in pairwise(cuts))
