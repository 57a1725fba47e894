"""Writes what the benchmarks serve: models of the mock engine, with a small tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.connection import MODEL

WAITING_MODEL = "waiting"  # its first token never comes while a benchmark runs
_NEVER_S = 3600.0
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONFIG = 'backend: "inprocess"\nparameters { key: "engine" value: { string_value: "mock" } }\n'


def write(repository: Path) -> Path:
    """Both models: one that answers as fast as it can, one that keeps its streams waiting."""
    tokenizer = write_tokenizer(repository.parent / "tokenizer")
    _write_model(repository / MODEL, {"tokenizer": str(tokenizer)})
    waiting = {"tokenizer": str(tokenizer), "first_token_delay_s": _NEVER_S}
    _write_model(repository / WAITING_MODEL, waiting)
    return repository


def write_tokenizer(folder: Path) -> Path:
    """One token for each byte, and ChatML's; no training, so the same everywhere."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _SPECIAL_TOKENS])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL_TOKENS[0],
        "eos_token": _SPECIAL_TOKENS[2],
        "chat_template": _CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _write_model(folder: Path, arguments: Mapping[str, Any]) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(_CONFIG)
    (version / "model.json").write_text(json.dumps(arguments))
