"""An embedding model like BGE-M3, with random weights: a vector for each input, one for each token,
and a weight for each token.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

BOS, EOS, HIDDEN = 0, 2, 64


def write(folder: Path) -> None:
    """Save the model in transformers' format with BGE-M3's two heads, and a tokenizer."""
    folder.mkdir(parents=True)
    torch.manual_seed(5)
    config = XLMRobertaConfig(
        architectures=["BgeM3EmbeddingModel"],
        vocab_size=512,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=130,
        type_vocab_size=1,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=1,
        initializer_range=0.3,
    )
    XLMRobertaModel(config).save_pretrained(folder)
    config.architectures = ["BgeM3EmbeddingModel"]
    config.save_pretrained(folder)
    for name, size in (("sparse_linear", 1), ("colbert_linear", HIDDEN)):
        torch.save(torch.nn.Linear(HIDDEN, size).state_dict(), folder / f"{name}.pt")
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """A tokenizer with the special tokens of XLM-RoBERTa and words such as `w40`."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    names = [*special, *(f"w{token_id}" for token_id in range(len(special), 512))]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<s>", BOS), ("</s>", EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    ).save_pretrained(folder)


def expected(folder: Path, token_ids: list[int]) -> dict[str, Any]:
    """The vectors by transformers: of the input, of the tokens after the first, and the weights of
    the tokens between the first and the last.
    """
    model = XLMRobertaModel.from_pretrained(folder).eval()
    heads = {}
    for name, size in (("sparse_linear", 1), ("colbert_linear", HIDDEN)):
        heads[name] = torch.nn.Linear(HIDDEN, size)
        heads[name].load_state_dict(torch.load(folder / f"{name}.pt"))
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
        normal = torch.nn.functional.normalize
        return {
            "embed": normal(hidden[0], dim=0).tolist(),
            "token_embed": normal(heads["colbert_linear"](hidden[1:]), dim=-1).tolist(),
            "token_classify": torch.relu(heads["sparse_linear"](hidden[1:-1]))[:, 0].tolist(),
        }
