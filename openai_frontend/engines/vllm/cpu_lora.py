"""LoRA on CPUs where requests with and without an adapter share a step. Runs in the EngineCore
process, by way of `worker.CPUWorker`.

A token without an adapter has the index -1. vLLM's kernels for CPUs take that as an index into the
adapters, counted from the end (0.32, lora/ops/torch_ops/lora_ops.py): the token gets what the last
slot's adapter adds, and answers of the base model are an adapter's in parts.
"""

from collections.abc import Callable
from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class SparingWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM's types are not followed
    """Leaves the rows as they are that have no adapter."""

    def add_lora_linear(self, y: Any, *given: Any, **named: Any) -> None:
        """A linear layer's outputs, one row for each token."""
        _sparing(self.token_lora_indices, y, super().add_lora_linear, *given, **named)

    def add_lora_embedding(self, y: Any, *given: Any, **named: Any) -> None:
        """The same for embeddings."""
        _sparing(self.token_lora_indices, y, super().add_lora_embedding, *given, **named)

    def add_lora_logits(self, y: Any, *given: Any, **named: Any) -> None:
        """The logits, one row for each request."""
        _sparing(self.sampler_indices, y, super().add_lora_logits, *given, **named)


def _sparing(indices: Any, y: Any, add: Callable[..., None], *given: Any, **named: Any) -> None:
    """`add` to `y`, but for the rows whose index is -1."""
    without = indices[: y.shape[0]] < 0
    if not without.any():
        add(y, *given, **named)
    elif not without.all():
        kept = y[without]  # a copy
        add(y, *given, **named)
        y[without] = kept
