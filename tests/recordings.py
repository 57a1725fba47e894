"""Spoken digits: utterances of tests/data/speech and the demo model's example, and new ones of the
words in them.

`make demo-speech` made them with eSpeak NG's voices, which the demo speech model knows.
"""

import json
import random
import wave
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.gateway_process import ROOT

FOLDER = ROOT / "tests" / "data" / "speech"
EXAMPLE = ROOT / "model_repository" / "demo-speech" / "example.wav"
SAMPLE_RATE = 16_000
NAMES = ("english", "german", "pause")
DIGITS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}
LONGEST_GAP_S = 0.4  # within a segment


@dataclass(frozen=True)
class Recording:
    """At most 4 s of speech."""

    language: str
    samples: NDArray[np.float32]
    digits: tuple[int, ...]
    times: tuple[tuple[float, float], ...]  # of the words, in seconds

    def text(self, language: str | None = None) -> str:
        """What is said, in this language."""
        return "".join(f" {DIGITS[language or self.language][digit]}" for digit in self.digits)

    @property
    def segments(self) -> list[tuple[float, float]]:
        """Start and end of the words between pauses."""
        found = [self.times[0]]
        for start, end in self.times[1:]:
            if start - found[-1][1] > LONGEST_GAP_S:
                found.append((start, end))
            else:
                found[-1] = found[-1][0], end
        return found


def read(name: str) -> Recording:
    """One of NAMES; `pause` has two segments."""
    said = json.loads((FOLDER / "said.json").read_text())[name]
    path = EXAMPLE if name == "english" else FOLDER / f"{name}.wav"
    with wave.open(str(path)) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    times = tuple((start, end) for start, end in said["times"])
    samples = np.asarray(data / 32_768, np.float32)
    return Recording(said["language"], samples, tuple(said["digits"]), times)


def fresh(seed: int, words: int = 4) -> Recording:
    """Words of one voice in another order, with other gaps and at another volume."""
    rng = random.Random(seed)
    source = read(rng.choice(NAMES))
    parts, digits, times = [_silence(rng.uniform(0.1, 0.4))], [], []
    at = len(parts[0])
    for _ in range(words):
        word = rng.randrange(len(source.digits))
        start, end = (round(each * SAMPLE_RATE) for each in source.times[word])
        clip, gap = source.samples[start:end], _silence(rng.uniform(0.05, 0.2))
        digits.append(source.digits[word])
        times.append((at / SAMPLE_RATE, (at + len(clip)) / SAMPLE_RATE))
        parts += [clip, gap]
        at += len(clip) + len(gap)
    samples = np.concatenate(parts)[: 4 * SAMPLE_RATE] * rng.uniform(0.5, 1.1)
    return Recording(source.language, samples.astype(np.float32), tuple(digits), tuple(times))


def _silence(seconds: float) -> NDArray[np.float32]:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)
