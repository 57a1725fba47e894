"""Utterances: digits spoken one after the other in English or German, with the time of each."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scripts.demo_model.exchange import Split

from .espeak import SAMPLE_RATE, Samples

WINDOW_S = 4.0
DIGITS = {
    "en": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "de": ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
}
# eSpeak NG's voices and their variants
VOICES: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "en": (
            "en-us", "en-us+m2", "en-us+m5", "en-us+f1", "en-us+f3",
            "en", "en+m3", "en+f2", "en+f4", "en-gb-x-rp",
        ),
        "de": (
            "de", "de+m1", "de+m2", "de+m3", "de+m5",
            "de+m6", "de+f1", "de+f2", "de+f3", "de+f4",
        ),
    },
    "held_out": {"en": ("en-us+m7", "en+f5"), "de": ("de+m7", "de+f5")},
}  # fmt: skip
_RATES, _PITCHES = (140, 165, 190), (35, 50, 65)
_SILENCE_AROUND_S = (0.05, 0.6)
_GAP_S = (0.03, 0.25)  # between the words of a segment
_PAUSE_S, _PAUSES = (0.5, 0.9), 0.25  # between segments, and how often
_SILENT = 0.03  # utterances without a word

Span = tuple[float, float]  # seconds
Say = Callable[[str, str, int, int], Samples]  # `Speaker.say`


@dataclass(frozen=True)
class Utterance:
    """What is said in at most one window."""

    language: str
    samples: Samples
    words: tuple[int, ...]  # digits
    times: tuple[Span, ...]  # of the words

    @cached_property
    def segments(self) -> list[tuple[Span, tuple[int, ...]]]:
        """Words between pauses, with the start of the first and the end of the last."""
        found: list[tuple[Span, tuple[int, ...]]] = []
        for word, (start, end) in zip(self.words, self.times, strict=True):
            if found and start - found[-1][0][1] < sum((_GAP_S[1], _PAUSE_S[0])) / 2:
                (begin, _), words = found[-1]
                found[-1] = (begin, end), (*words, word)
            else:
                found.append(((start, end), (word,)))
        return found

    def text(self, language: str) -> str:
        """The words in this language."""
        return written(self.words, language)


def written(words: Sequence[int], language: str) -> str:
    """Digits as Whisper writes words: each after a space."""
    return "".join(f" {DIGITS[language][word]}" for word in words)


class Recordings:
    """All digits by all voices of a split, at each rate and pitch."""

    def __init__(self, say: Say, split: Split) -> None:
        self._clips: dict[str, list[list[Samples]]] = {
            language: [
                [say(word, voice, rate, pitch) for word in DIGITS[language]]
                for voice in voices
                for rate in _RATES
                for pitch in _PITCHES
            ]
            for language, voices in VOICES[split].items()
        }

    def utterance(self, rng: random.Random, most: int = 6) -> Utterance:
        """Up to `most` digits, as many as fit into a window, at any volume, maybe with noise."""
        language = rng.choice(tuple(DIGITS))
        clips = rng.choice(self._clips[language])
        speed = rng.uniform(0.94, 1.06)
        samples = np.zeros(int(WINDOW_S * SAMPLE_RATE), np.float32)
        words: list[int] = []
        times: list[Span] = []
        at = int(rng.uniform(*_SILENCE_AROUND_S) * SAMPLE_RATE)
        end = at
        for _ in range(0 if rng.random() < _SILENT else rng.randint(1, most)):
            word = rng.randrange(len(clips))
            clip = _stretched(clips[word], speed)
            if at + len(clip) > len(samples) - int(_SILENCE_AROUND_S[0] * SAMPLE_RATE):
                break
            end = at + len(clip)
            samples[at:end] = clip
            words.append(word)
            times.append((at / SAMPLE_RATE, end / SAMPLE_RATE))
            gap = _PAUSE_S if rng.random() < _PAUSES else _GAP_S
            at = end + int(rng.uniform(*gap) * SAMPLE_RATE)
        length = end + int(rng.uniform(*_SILENCE_AROUND_S) * SAMPLE_RATE)
        samples = _recorded(rng, samples[: min(length, len(samples))])
        return Utterance(language, samples, tuple(words), tuple(times))


def _stretched(clip: Samples, speed: float) -> Samples:
    """Faster and higher, or slower and lower."""
    at = np.arange(0, len(clip) - 1, speed)
    return np.asarray(np.interp(at, np.arange(len(clip)), clip), np.float32)


def _recorded(rng: random.Random, samples: Samples) -> Samples:
    """With another volume, and noise in most cases."""
    volume = rng.uniform(0.1, 0.9)
    if rng.random() >= 0.7:
        return samples * np.float32(volume)
    noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(len(samples))
    loud = samples * volume + noise * 10 ** rng.uniform(-4.5, -2.3)
    return np.asarray(np.clip(loud, -1.0, 1.0), np.float32)
