"""Reads TensorRT-LLM's engine config and prepares the tokenizer file of guided decoding."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo.options import InvalidOption, read_json
from openai_frontend.errors import ModelUnavailable
from openai_frontend.prompting import tokenizer
from openai_frontend.prompting.tokenizer import Tokenizer

MAX_LORA_RANK = 64  # TensorRT-LLM's default

_DATATYPES = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32"}


class EngineConfig:
    """config.json of a built engine."""

    def __init__(self, folder: Path) -> None:
        config = read_json("--engine-dir", folder / "config.json")
        self._build = _member(config, "build_config")
        self._model = _member(config, "pretrained_config")

    def count(self, name: str) -> int | None:
        """A limit the engine was built with."""
        value = self._build.get(name)
        return value if type(value) is int and value > 0 else None

    def max_lora_rank(self) -> int | None:
        """Maximum rank of LoRA adapters; None if the engine was built without LoRA."""
        if _member(self._build, "plugin_config").get("lora_plugin") is None:
            return None
        rank = _member(self._build, "lora_config").get("max_lora_rank")
        return rank if type(rank) is int else MAX_LORA_RANK

    def datatypes(self) -> dict[str, str]:
        """Datatypes of tensors that depend on the engine."""
        return {
            "$LOGITS": self._datatype("logits_dtype", "float32"),
            "$EMBEDDINGS": self._datatype("dtype", "float16"),
        }

    def _datatype(self, name: str, default: str) -> str:
        return _DATATYPES.get(str(self._model.get(name, default)), _DATATYPES[default])


def _member(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def tokenizer_info(folder: Path) -> str | None:
    """The file that xgrammar reads: vocabulary by id, tokenizer.json and stop tokens.

    None if the folder has no tokenizer.json, which it needs.
    """
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        loaded = tokenizer.load(folder)
    except ModelUnavailable as error:
        raise InvalidOption("--tokenizer", f"{folder}: {error.message}") from None
    info = {
        "encoded_vocab": _vocabulary(loaded),
        "tokenizer_str": loaded.fast.to_str(),
        "stop_token_ids": _stop_token_ids(folder, loaded),
    }
    return json.dumps(info, ensure_ascii=False)


def _vocabulary(loaded: Tokenizer) -> list[str]:
    ids = loaded.fast.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values()) + 1)  # unused ids have no text
    for token, number in ids.items():
        tokens[number] = token
    return tokens


def _stop_token_ids(folder: Path, loaded: Tokenizer) -> list[int]:
    path = folder / "generation_config.json"
    ids: Any = read_json("--tokenizer", path).get("eos_token_id") if path.is_file() else None
    if ids is None:
        ids = loaded.fast.token_to_id(loaded.special_tokens.get("eos_token", ""))
    return [number for number in (ids if isinstance(ids, list) else [ids]) if number is not None]
