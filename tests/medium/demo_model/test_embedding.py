"""The committed demo embedding model and its training sentences."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # imports torch

WEIGHTS = Path(__file__).parents[3] / "model_repository" / "demo-embedding" / "1" / "weights"


@pytest.fixture(scope="module")
def embedder(one_torch_thread):
    """Returns the vectors of texts."""
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = BertModel.from_pretrained(WEIGHTS, add_pooling_layer=False).eval()
    return model, tokenizer


def test_held_out_sentences_on_one_subject_are_closer(embedder):
    """Sentences outside the training set are closer to their own subject than to others."""
    from scripts.demo_embedding.train import score

    result = score(*embedder)

    assert result.right / result.compared > 0.99
    assert result.nearest / result.sentences > 0.9


def test_new_sentences_find_their_subject(embedder):
    """Each query is closest to the statement about its subject in different words."""
    import torch

    from scripts.demo_embedding.model import embed

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


def test_weights_are_small():
    """All files together are below 3 MB, for a model of 560,384 parameters."""
    config = json.loads((WEIGHTS / "config.json").read_text())

    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) < 3_000_000
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 128)
