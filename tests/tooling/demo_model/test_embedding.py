"""The committed demo embedding model, and the sentences that it was trained on."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertModel

from scripts.demo_embedding import corpus
from scripts.demo_embedding.model import embed
from scripts.demo_embedding.train import score

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo-embedding" / "1" / "weights"


@pytest.fixture(scope="module")
def embedder():
    """Texts -> vectors."""
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = BertModel.from_pretrained(WEIGHTS, add_pooling_layer=False).eval()
    return model, tokenizer


def test_held_out_sentences_about_the_same_thing_are_closer(embedder):
    """Of sentences that training never saw, those of one subject are closer than others."""
    result = score(*embedder)

    assert result.right / result.compared > 0.99
    assert result.nearest / result.sentences > 0.9


def test_sentences_written_for_this_test_find_their_subject(embedder):
    """Each query is nearest to the statement about its subject, in words of its own."""
    model, tokenizer = embedder
    pairs = {
        "Should I take my umbrella in the evening?": "Heavy showers flooded the streets.",
        "The kitten drinks its milk on the chair.": "My cat hunts mice.",
        "How can I repay the mortgage?": "The bank pays interest on savings.",
        "The astronauts float around the moon.": "A rocket flies into orbit.",
        "What does the goalkeeper do in the final?": "The striker missed a penalty.",
        "Which port does the gateway listen on?": "What port is the server on?",
    }
    with torch.inference_mode():
        queries = embed(model, tokenizer, pairs.keys())
        statements = embed(model, tokenizer, pairs.values())

    assert (queries @ statements.T).argmax(1).tolist() == list(range(len(pairs)))


def test_held_out_sentences_are_never_trained_on():
    """No held-out sentence is among the training pairs."""
    held_out = {text for texts in corpus.held_out().values() for text in texts}
    trained = {text for batch in corpus.batches(1, 60, 48) for pair in batch for text in pair}

    assert held_out & trained == set()


def test_a_seed_gives_the_same_pairs():
    """Two runs with one seed train on equal sentences, another seed on others."""
    first, same, other = (list(corpus.batches(seed, 3, 8)) for seed in (7, 7, 8))

    assert first == same != other


def test_the_weights_are_small():
    """All files together stay under 3 MB, for a model of 560,384 parameters."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 3_000_000
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 128)
