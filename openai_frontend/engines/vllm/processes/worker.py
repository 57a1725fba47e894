"""vLLM's CPU worker with five fixes: seeds with chunked prefill, LoRA in mixed batches, log
probabilities of prompts with LoRA, no compilation with `enforce_eager`, and KV transfers that leave
the processor alone. Runs in the EngineCore process, which loads it by name.

Seeds: a step that reads only a part of a prompt samples a token that is discarded, and must return
its draw to the request's generator. vLLM uses the generator's offset for that, which CPU generators
do not have (0.32, v1/worker/gpu_model_runner.py): the process crashes, and all requests with it.
Any client that sends `seed` could cause it, because prompts that arrive together share a step's
tokens.

LoRA: a token without an adapter has the index -1. vLLM's CPU kernels use it as an index from the
end of the adapters (0.32, lora/ops/torch_ops/lora_ops.py): the token gets the contribution of the
last slot's adapter, and outputs of the base model are partly an adapter's.

Prompts: vLLM computes the logits of a prompt's tokens for `prompt_logprobs` with the adapters of
the step's requests, one for each of them and not for each token (0.32,
v1/worker/gpu_model_runner.py): the process crashes if one of them has an adapter.

Compilation: vLLM compiles the ranks of log probabilities in spite of `enforce_eager`
(0.32, v1/sample/ops/logprobs.py). The first request with `logprobs` ran the C++ compiler for 10 s,
and all other requests waited.

KV transfers: NIXL's progress thread polls without a pause, which takes a core while nothing runs.
And vLLM pins the engine's main thread to the last core, the same for all engines of the machine
(0.32, nixl/base_worker.py).
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vllm.lora import model_manager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


class CPULoRAWrapper(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM's types are not followed
    """Leaves the rows of tokens without an adapter unchanged."""

    def add_lora_linear(self, y: Any, *given: Any, **named: Any) -> None:
        """Outputs of a linear layer, one row per token."""
        _skip_base_rows(self.token_lora_indices, y, super().add_lora_linear, *given, **named)

    def add_lora_embedding(self, y: Any, *given: Any, **named: Any) -> None:
        """Embeddings, one row per token."""
        _skip_base_rows(self.token_lora_indices, y, super().add_lora_embedding, *given, **named)

    def add_lora_logits(self, y: Any, *given: Any, **named: Any) -> None:
        """Logits, one row per request, or per token of one prompt, maybe without its last ones."""
        rows = self.indices_len[1]  # of `sampler_indices`
        self.indices_len[1] = min(rows, y.shape[0])
        try:
            _skip_base_rows(self.sampler_indices, y, super().add_lora_logits, *given, **named)
        finally:
            self.indices_len[1] = rows


def _skip_base_rows(
    indices: Any, y: Any, add: Callable[..., None], *given: Any, **named: Any
) -> None:
    """Apply `add` to `y`, except for rows with index -1."""
    without = indices[: y.shape[0]] < 0
    if not without.any():
        add(y, *given, **named)
    elif not without.all():
        kept = y[without]  # a copy
        add(y, *given, **named)
        y[without] = kept


class PromptLogprobsMixin:
    """Computes the logits of each prompt with the adapter of its request."""

    input_batch: Any
    lora_config: Any
    num_prompt_logprobs: dict[str, int]
    set_active_loras: Callable[..., None]

    def _get_prompt_logprobs_dict(
        self, hidden_states: Any, num_scheduled_tokens: dict[str, int]
    ) -> Any:
        """vLLM's, for one request after the other; it removes those whose prompt is complete."""
        compute = super()._get_prompt_logprobs_dict  # type: ignore[misc]
        if self.lora_config is None:
            return compute(hidden_states, num_scheduled_tokens)
        every = self.num_prompt_logprobs
        found: dict[str, Any] = {}
        for request_id in [each for each in every if each in num_scheduled_tokens]:
            self._set_lora_of_rows(request_id, num_scheduled_tokens)
            self.num_prompt_logprobs = {request_id: every[request_id]}
            found |= compute(hidden_states, num_scheduled_tokens)
            if request_id not in self.num_prompt_logprobs:
                del every[request_id]
        self.num_prompt_logprobs = every
        return found

    def _set_lora_of_rows(self, request_id: str, num_scheduled_tokens: dict[str, int]) -> None:
        """The rows of logits are the tokens of this request."""
        batch = self.input_batch
        tokens = np.array([num_scheduled_tokens[each] for each in batch.req_ids], np.int32)
        rows = np.where(np.array(batch.req_ids) == request_id, tokens, 0)
        self.set_active_loras(batch, tokens, rows)


class SeededModelRunner(PromptLogprobsMixin, CPUModelRunner):  # type: ignore[misc]  # not followed
    """Restores the generator's whole state to undo a draw."""

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
        """vLLM uses the generators here only to undo draws, which `_sample` has done."""
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return super()._bookkeeping_sync(*given, **named)
        finally:
            batch.generators = generators


class CPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]  # vLLM's types are not followed
    """vLLM's CPU worker with this runner and this LoRA wrapper."""

    def init_device(self) -> None:
        """vLLM creates the runner and the LoRA wrapper by these module attributes."""
        cpu_worker.CPUModelRunner = SeededModelRunner
        model_manager.get_punica_wrapper = CPULoRAWrapper
        if self.model_config.enforce_eager:
            torch.compiler.set_stance("force_eager")
        super().init_device()

    def initialize_from_config(self, *given: Any, **named: Any) -> None:
        """vLLM creates its KV connector here."""
        if self.vllm_config.kv_transfer_config is None:
            super().initialize_from_config(*given, **named)
            return
        _slow_down_nixl()
        cores = os.sched_getaffinity(0)
        try:
            super().initialize_from_config(*given, **named)
        finally:
            os.sched_setaffinity(0, cores)


# Between two looks of NIXL's progress thread. A transfer of a few blocks takes 3.5 ms with it, and
# the thread 0.02 of a core instead of a whole one.
_NIXL_PAUSE_US = 1000


def _slow_down_nixl() -> None:
    """Agents that are created from now on pause; NIXL's Python API sets no pause."""
    try:
        from nixl._api import nixlBind
    except ImportError:  # another connector
        return
    create = nixlBind.nixlAgent

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = _NIXL_PAUSE_US
        return create(name, config)

    nixlBind.nixlAgent = agent
