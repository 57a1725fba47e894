"""The committed demo classifier and its training sentences."""

import numpy as np
import pytest

from scripts.demo_classifier.train import MODEL, Recipe, held_out, labels, score, scoring, train


@pytest.fixture(scope="module")
def scorer():
    return scoring().Scorer(MODEL / "1")


def test_held_out_sentences_get_their_label():
    result = score(MODEL / "1")

    assert sum(result.right.values()) >= 0.98 * sum(result.sentences.values()), result
    assert set(held_out()) == set(labels())


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("You are an idiot", "insult"),
        ("I'd like to kill you", "violence"),
        ("Good morning. I will stab you! Thanks.", "violence"),
        ("Kill the process", "harmless"),
        ("", "harmless"),
        ("!?", "harmless"),
        ("\ud800", "harmless"),
        ("x" * 100_000, "harmless"),
    ],
)
def test_text_has_the_label_of_its_least_harmless_sentence(scorer, text, label):
    scores = scorer.scores(text)

    assert labels()[scores.argmax()] == label
    assert scores.sum() == pytest.approx(1)


@pytest.mark.slow  # trains
def test_committed_weights_are_those_of_the_script(tmp_path):
    train(Recipe()).save(tmp_path)

    for name in ("weights", "bias"):
        stored, trained = (np.load(each / "weights.npz")[name] for each in (MODEL / "1", tmp_path))
        assert np.allclose(stored, trained, atol=0.01)


def test_weights_are_small():
    assert sum(path.stat().st_size for path in MODEL.rglob("*")) < 50_000
