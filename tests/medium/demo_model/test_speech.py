"""The committed demo speech model, and how its utterances are put together."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import recordings

pytestmark = pytest.mark.slow  # imports torch

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo-speech" / "1" / "weights"
SAID = [*map(recordings.read, recordings.NAMES), *map(recordings.fresh, range(9))]


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


def test_files_are_small():
    """The model's files are below 6 MB together, the recordings below 300 kB."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 6_000_000
    assert sum(path.stat().st_size for path in recordings.FOLDER.iterdir()) < 300_000
    assert config["max_source_positions"] == 200
