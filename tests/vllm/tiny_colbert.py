"""ColBERT with random weights: BERT and a projection of each token."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from tests.vllm import tiny_cross_encoder

HIDDEN, WIDTH = 64, 16


def write(folder: Path) -> None:
    """Save the model under the names of ColBERT's checkpoints, and a tokenizer. Without `dim`: vLLM
    0.33 sets the projection before its module is initialized if the config has its size.
    """
    folder.mkdir(parents=True)
    torch.manual_seed(7)
    config = BertConfig(
        architectures=["HF_ColBERT"],
        vocab_size=len(tiny_cross_encoder.SPECIAL) + len(tiny_cross_encoder.WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    bert = BertModel(config, add_pooling_layer=False).state_dict()
    weights = {f"bert.{name}": weight.contiguous() for name, weight in bert.items()}
    weights["linear.weight"] = torch.randn(WIDTH, HIDDEN)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    tiny_cross_encoder.write_tokenizer(folder)


def expected(folder: Path, token_ids: list[int]) -> list[list[float]]:
    """The vectors by transformers, of length 1."""
    weights = load_file(folder / "model.safetensors")
    projection = weights.pop("linear.weight")
    bert = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    bert.load_state_dict({name.removeprefix("bert."): each for name, each in weights.items()})
    with torch.no_grad():
        hidden = bert(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
        vectors = torch.nn.functional.normalize(hidden @ projection.T, dim=-1)
    return list(vectors.tolist())
