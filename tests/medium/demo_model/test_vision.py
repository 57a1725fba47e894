"""The committed demo vision model and its pictures."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # imports torch

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo-vision" / "1" / "weights"


def test_answers_about_new_pictures_are_right(one_torch_thread):
    """At least 95 % of each kind; with pairs that training never drew, of counts."""
    from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

    from scripts.demo_vision.evaluate import score
    from scripts.demo_vision.questions import KINDS, scored_questions

    processor = Idefics3Processor.from_pretrained(WEIGHTS)
    model = Idefics3ForConditionalGeneration.from_pretrained(WEIGHTS).eval()

    asked = [
        scored_questions(5, "held_out", 20, kinds=["count"]),
        *(scored_questions(5, "train", 20, kinds=[kind]) for kind in KINDS),
    ]

    results = [score(model, processor, each, seed=5) for each in asked]

    for result in results:
        assert result.right.total() >= 0.95 * result.asked.total(), result.wrong


def test_weights_are_small():
    """All files together are below 6 MB, for a model of 1.3 million parameters."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 6_000_000
    assert config["text_config"]["vocab_size"] == 2056
