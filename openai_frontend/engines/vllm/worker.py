"""vLLM's CPU worker with two fixes: seeds with chunked prefill, and LoRA in mixed batches. Runs in
the EngineCore process, which loads it by name.

A step that reads a part of a prompt samples a token that nobody wants, and takes its draw back from
the request's generator. vLLM does so by the generator's offset, which CPU generators do not have
(0.32, v1/worker/gpu_model_runner.py): the process dies, and every request with it. Any client that
sends `seed` could have it so, for prompts that come together share a step's tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from vllm.lora import model_manager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


class CPULoRAWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM's types are not followed
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


class SeededModelRunner(CPUModelRunner):  # type: ignore[misc]  # vLLM's types are not followed
    """Takes a draw back by the generator's whole state."""

    def _sample(self, *given: Any, **named: Any) -> Any:
        generators = self.input_batch.generators
        if not generators:
            return super()._sample(*given, **named)
        unwanted = np.nonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])[0]
        drawing = [generators[i] for i in unwanted.tolist() if i in generators]
        states = [generator.get_state() for generator in drawing]
        sampled = super()._sample(*given, **named)
        for generator, state in zip(drawing, states, strict=True):
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(self, *given: Any, **named: Any) -> Any:
        """It asks for the generators to take draws back, and for nothing else."""
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return super()._bookkeeping_sync(*given, **named)
        finally:
            batch.generators = generators


class CPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]  # vLLM's types are not followed
    """vLLM's with that runner."""

    def init_device(self) -> None:
        """See vLLM's, which makes the runner and adds adapters by these names."""
        cpu_worker.CPUModelRunner = SeededModelRunner
        model_manager.get_punica_wrapper = CPULoRAWrapper
        super().init_device()
