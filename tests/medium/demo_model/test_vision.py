"""The committed demo vision model and its pictures."""

import json
import random
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


def test_held_out_pairs_are_never_drawn_in_training():
    """A scene of the other split has at least one of them."""
    from scripts.demo_vision.pictures import COLOURS, SHAPES, Shape, draw_scene

    rng = random.Random(3)
    pairs = [Shape(colour, kind) for colour in COLOURS for kind in SHAPES]
    held_out = {pair for pair in pairs if pair.is_held_out}

    assert 0 < len(held_out) < len(pairs) / 8
    for _ in range(300):
        assert not held_out & set(draw_scene(rng, "train"))
        assert held_out & set(draw_scene(rng, "held_out"))


def test_seed_reproduces_pictures_and_chats():
    """Two runs with one seed train on equal pictures and chats; another seed gives others."""
    from scripts.demo_vision.pictures import paint
    from scripts.demo_vision.questions import chat

    def drawn(seed: int) -> list[object]:
        rng = random.Random(seed)
        chats = [chat(rng) for _ in range(20)]
        return [*chats, *(paint(rng, each.scenes[0], 64, 64).tobytes() for each in chats)]

    assert drawn(7) == drawn(7) != drawn(8)


def test_answers_follow_from_the_scene():
    """One answer of each kind."""
    from scripts.demo_vision.pictures import Shape
    from scripts.demo_vision.questions import KINDS

    scene = (Shape("red", "circle"), None, Shape("orange", "star"), Shape("red", "star"))
    answers = {kind: ask(random.Random(1), scene) for kind, ask in KINDS.items()}

    assert {kind: found and found[1] for kind, found in answers.items()} == {
        "colour": "The circle is red.",
        "count": "There are 3 shapes.",
        "shape": "The star is orange.",
        "description": "I see a red circle, an orange star and a red star.",
    }


def test_weights_are_small():
    """All files together are below 6 MB, for a model of 1.3 million parameters."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 6_000_000
    assert config["text_config"]["vocab_size"] == 2056
