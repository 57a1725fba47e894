"""A cross-encoder of two layers with random weights: small, and sensitive to every input."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

WORDS = ("triton", "serves", "models", "the", "cat", "sleeps", "what", "does", "do", "?")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write(folder: Path, labels: tuple[str, ...] = ("LABEL_0",)) -> None:
    """Save model and tokenizer in transformers' format."""
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        id2label=dict(enumerate(labels)),
        label2id={label: at for at, label in enumerate(labels)},
        initializer_range=0.3,  # so that the scores of such pairs differ widely
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """Save BERT's tokenizer of the words."""
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join((*SPECIAL, *WORDS)) + "\n")
    BertTokenizerFast(vocab_file=str(vocabulary)).save_pretrained(folder)


def score(folder: Path, token_ids: list[int], token_type_ids: list[int]) -> float:
    """Return the score of transformers for a sequence, after the sigmoid of a single label."""
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([token_ids]), token_type_ids=torch.tensor([token_type_ids])
        )
    return float(torch.sigmoid(output.logits[0, 0]))


def probabilities(folder: Path, token_ids: list[int]) -> list[float]:
    """Return the softmax of transformers for several labels."""
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([token_ids])).logits[0]
    return list(torch.softmax(logits, 0).tolist())
