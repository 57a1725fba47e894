"""A Llama in NumPy, for the weights of the demo model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]

# (module, layer) -> its matrices A [rank, in] and B [out, rank], already scaled
Adapter = dict[tuple[str, int], tuple[Array, Array]]


@dataclass
class Cache:
    """Keys and values of one sequence, per layer [tokens, heads, size]."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    def copy(self) -> "Cache":
        return Cache(list(self.keys), list(self.values))

    @property
    def length(self) -> int:
        return len(self.keys[0]) if self.keys else 0


class Llama:
    """The model of a folder in Hugging Face's format."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.embeddings: Array = self.weights["model.embed_tokens.weight"]
        self.layers = range(self.config["num_hidden_layers"])
        size = self.config["head_dim"]
        theta = self.config["rope_parameters"]["rope_theta"]
        self._frequencies: Array = theta ** -(np.arange(0, size, 2, dtype=np.float32) / size)

    @property
    def vocabulary_size(self) -> int:
        return len(self.embeddings)

    def logits(self, ids: Sequence[int], cache: Cache, adapter: Adapter | None = None) -> Array:
        """The logits [len(ids), vocabulary] after each of these tokens, which follow the cache."""
        hidden = self.embeddings[np.asarray(ids)]
        start = cache.length
        positions = np.arange(start, start + len(ids), dtype=np.float32)
        angles = np.outer(positions, self._frequencies)
        turn = np.cos(angles)[:, None], np.sin(angles)[:, None]
        for layer in self.layers:
            hidden = hidden + self._attention(layer, hidden, cache, turn, adapter)
            hidden = hidden + self._feed_forward(layer, hidden, adapter)
        normal = self._normal(hidden, self.weights["model.norm.weight"])
        return normal @ self.embeddings.T

    def _attention(
        self,
        layer: int,
        hidden: Array,
        cache: Cache,
        turn: tuple[Array, Array],
        adapter: Adapter | None,
    ) -> Array:
        given = self._normal(hidden, self._weight(layer, "input_layernorm"))
        size, count = self.config["head_dim"], len(hidden)
        query, key, value = (
            self._linear(layer, f"self_attn.{name}_proj", given, adapter).reshape(count, -1, size)
            for name in "qkv"
        )
        query, key = _turned(query, turn), _turned(key, turn)
        if len(cache.keys) > layer:
            key = cache.keys[layer] = np.concatenate([cache.keys[layer], key])
            value = cache.values[layer] = np.concatenate([cache.values[layer], value])
        else:
            cache.keys.append(key)
            cache.values.append(value)
        groups = query.shape[1] // key.shape[1]
        keys, values = key.repeat(groups, axis=1), value.repeat(groups, axis=1)
        scores: Any = np.einsum("qhd,khd->hqk", query, keys) * np.float32(size**-0.5)
        if count > 1:
            scores += np.triu(np.full(scores.shape[1:], -np.inf, np.float32), len(keys) - count + 1)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores), values).reshape(count, -1)
        return self._linear(layer, "self_attn.o_proj", mixed, adapter)

    def _feed_forward(self, layer: int, hidden: Array, adapter: Adapter | None) -> Array:
        given = self._normal(hidden, self._weight(layer, "post_attention_layernorm"))
        gate = self._linear(layer, "mlp.gate_proj", given, adapter)
        up = self._linear(layer, "mlp.up_proj", given, adapter)
        return self._linear(layer, "mlp.down_proj", gate / (1 + np.exp(-gate)) * up, adapter)

    def _linear(self, layer: int, name: str, given: Array, adapter: Adapter | None) -> Array:
        made: Array = given @ self._weight(layer, name).T
        if adapter is not None and (name, layer) in adapter:
            inner, outer = adapter[name, layer]
            made += given @ inner.T @ outer.T
        return made

    def _weight(self, layer: int, name: str) -> Array:
        return self.weights[f"model.layers.{layer}.{name}.weight"]

    def _normal(self, hidden: Array, weight: Array) -> Array:
        mean = np.mean(hidden * hidden, axis=-1, keepdims=True)
        normal: Array = hidden / np.sqrt(mean + self.config["rms_norm_eps"]) * weight
        return normal


def softmax(scores: Array) -> Array:
    """Over the last axis."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def log_softmax(logits: Array) -> Array:
    """Over the last axis."""
    lowered = logits - logits.max(axis=-1, keepdims=True)
    shares: Array = lowered - np.log(np.exp(lowered).sum(axis=-1, keepdims=True))
    return shares


def _turned(heads: Array, turn: tuple[Array, Array]) -> Array:
    """Rotary positions: rotates the first half of each head against the second."""
    cos, sin = turn
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
