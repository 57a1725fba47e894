"""The demo embedding model: a BERT of half a million parameters and its WordPiece tokenizer."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

VOCABULARY_SIZE = 2048
MAX_TOKENS = 256
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# The files by which sentence-transformers and vLLM know how tokens become one vector of length 1.
_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {
        "idx": 2,
        "name": "2",
        "path": "2_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn a vocabulary of lower-case word pieces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY_SIZE, special_tokens=list(_SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",  # noqa: S106 - no password
        unk_token="[UNK]",  # noqa: S106 - no password
        cls_token="[CLS]",  # noqa: S106 - no password
        sep_token="[SEP]",  # noqa: S106 - no password
        mask_token="[MASK]",  # noqa: S106 - no password
        model_max_length=MAX_TOKENS,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> BertModel:
    """2 layers of 128, not trained yet."""
    config = BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    return BertModel(config, add_pooling_layer=False)


def embed(
    model: BertModel, tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]
) -> torch.Tensor:
    """The mean of the tokens' vectors, of length 1: [texts, 128]."""
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    hidden = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def save(model: BertModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model as sentence-transformers lays one out."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pooling = folder / "1_Pooling"
    pooling.mkdir(exist_ok=True)
    _write(folder / "modules.json", _MODULES)
    _write(
        pooling / "config.json",
        {"word_embedding_dimension": model.config.hidden_size, "pooling_mode_mean_tokens": True},
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": MAX_TOKENS})


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
