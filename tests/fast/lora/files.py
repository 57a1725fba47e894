"""Adapters as their makers write them, without weights worth the name."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy

LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def write_peft(folder: Path, *, hidden_size: int = 8, rank: int = 4, **config: Any) -> Path:
    """PEFT's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(written | config))
    size = 4 * rank * hidden_size
    tensor = {"dtype": "F32", "shape": [rank, hidden_size], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, LORA_A: tensor}).encode()
    weights = struct.pack("<Q", len(header)) + header + bytes(size)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def write_tensorrt_llm(
    folder: Path, *, modules: int = 2, values: int = 6, dtype: str = "<f2"
) -> Path:
    """TensorRT-LLM's two files: weights of one, two, three, ..., and a config."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = numpy.arange(modules * values).astype(dtype).reshape(1, modules, values)
    config = numpy.array([[[0, layer, 4] for layer in range(modules)]], dtype="<i4")
    numpy.save(folder / "model.lora_weights.npy", weights)
    numpy.save(folder / "model.lora_config.npy", config)
    return folder
