"""What a TensorRT-LLM engine was built for, as the config.json in its folder says it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai_frontend.cli.init_repo.options import read_json

MAX_LORA_RANK = 64  # TensorRT-LLM's own, where an engine does not say

_DATATYPES = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32"}


class EngineConfig:
    """What an engine's own config.json says of it."""

    def __init__(self, folder: Path) -> None:
        config = read_json("--engine-dir", folder / "config.json")
        self._build = _member(config, "build_config")
        self._model = _member(config, "pretrained_config")

    def count(self, name: str) -> int | None:
        """A limit that the engine was built with."""
        value = self._build.get(name)
        return value if type(value) is int and value > 0 else None

    def max_lora_rank(self) -> int | None:
        """Of the adapters that it takes; None where it was built to take none."""
        if _member(self._build, "plugin_config").get("lora_plugin") is None:
            return None
        rank = _member(self._build, "lora_config").get("max_lora_rank")
        return rank if type(rank) is int else MAX_LORA_RANK

    def datatypes(self) -> dict[str, str]:
        """Of the tensors that have the engine's own."""
        return {
            "$LOGITS": self._datatype("logits_dtype", "float32"),
            "$EMBEDDINGS": self._datatype("dtype", "float16"),
        }

    def _datatype(self, name: str, default: str) -> str:
        return _DATATYPES.get(str(self._model.get(name, default)), _DATATYPES[default])


def _member(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}
