"""The committed demo speech model, and how its utterances are put together."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import recordings

pytestmark = pytest.mark.slow  # imports torch

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo-speech" / "1" / "weights"
SAID = [*map(recordings.read, recordings.NAMES), *map(recordings.fresh, range(9))]


def tone(text: str, voice: str, rate: int, pitch: int) -> NDArray[np.float32]:
    """Stands for any word: 0.3 s, whose pitch is that of the voice."""
    return np.sin(np.arange(4_800) * pitch / 400, dtype=np.float32)


@pytest.fixture
def tones():
    """Recordings without eSpeak NG, which only `make demo-speech` installs."""
    from scripts.demo_speech.utterances import Recordings

    return Recordings(tone, "train")


def test_recordings_and_fresh_utterances_are_transcribed(one_torch_thread):
    """With transformers: at least 11 of 12 to the letter, and each time within 0.25 s."""
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    from scripts.demo_speech.evaluate import answers, segments
    from scripts.demo_speech.model import decoder_prompt
    from scripts.demo_speech.utterances import Utterance

    processor = WhisperProcessor.from_pretrained(WEIGHTS)
    model = WhisperForConditionalGeneration.from_pretrained(WEIGHTS).eval()
    spoken = [Utterance(each.language, each.samples, each.digits, each.times) for each in SAID]
    prompts = [decoder_prompt(each.language, "transcribe", timestamps=True) for each in SAID]

    texts = answers(model, processor, spoken, prompts)

    found = [segments(text) for text in texts]
    said = ["".join(words for _, words in each) for each in found]
    assert sum(a == each.text() for a, each in zip(said, SAID, strict=True)) >= 11, said
    for times, each in zip(found, SAID, strict=True):
        if len(times) == len(each.segments):
            errors = np.subtract([span for span, _ in times], each.segments)
            assert np.abs(errors).max() <= 0.25


def test_utterance_fits_into_a_window(tones):
    """Words are in order and within the samples; some utterances have pauses, some no word."""
    from scripts.demo_speech.utterances import WINDOW_S

    rng = random.Random(1)
    made = [tones.utterance(rng) for _ in range(300)]

    for each in made:
        flat = [0.0, *(at for times in each.times for at in times), len(each.samples) / 16_000]
        assert flat == sorted(flat)
        assert flat[-1] <= WINDOW_S
        assert np.abs(each.samples).max() <= 1
        assert sum(len(words) for _, words in each.segments) == len(each.words)
    assert {len(each.segments) for each in made} >= {0, 1, 2, 3}
    assert {each.language for each in made} == {"en", "de"}


def test_seed_reproduces_utterances_and_lessons(tones):
    """Two runs with one seed train on the same; another seed gives other utterances."""

    def made(seed: int) -> list[object]:
        rng = random.Random(seed)
        found = [tones.utterance(rng) for _ in range(20)]
        return [(each.words, each.times, each.samples.tobytes()) for each in found]

    assert made(7) == made(7) != made(8)


def test_transcript_has_the_times_of_segments():
    """In steps of 0.02 s, around the words between pauses; or the words alone."""
    from scripts.demo_speech.model import transcript
    from scripts.demo_speech.utterances import Utterance

    times = ((0.111, 0.4), (0.5, 0.909), (1.5, 1.8))
    utterance = Utterance("de", np.zeros(32_000, np.float32), (1, 2, 3), times)

    assert transcript(utterance, "de", timestamps=True) == (
        "<|0.12|> eins zwei<|0.90|><|1.50|> drei<|1.80|>"
    )
    assert transcript(utterance, "en", timestamps=False) == " one two three"


def test_files_are_small():
    """The model's files are below 6 MB together, the recordings below 300 kB."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 6_000_000
    assert sum(path.stat().st_size for path in recordings.FOLDER.iterdir()) < 300_000
    assert config["max_source_positions"] == 200
