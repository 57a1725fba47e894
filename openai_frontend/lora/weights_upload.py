"""Sends an adapter's weights to TensorRT-LLM, which caches them under the adapter's id.

The first request carries them, and a later one if TensorRT-LLM has evicted them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.generation import (
    Adapter,
    AdapterWeights,
    CompletionDelta,
    GenerationRequest,
)
from openai_frontend.lora.files import FILES, InvalidLoRA, read_array
from openai_frontend.triton_interface import LORA_EVICTED

Bursts = AsyncGenerator[list[CompletionDelta], None]


class WeightsUploader:
    """Tracks which adapters one backend has the weights of. Used on the event loop."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    async def generate(
        self, request: GenerationRequest, generate: Callable[[GenerationRequest], Bursts]
    ) -> Bursts:
        """Run `generate`. If it fails for lack of weights before any output, retry with weights."""
        adapter = request.adapter
        if adapter is None:
            raise ValueError("the request has no adapter")
        if adapter.id in self._ids:
            has_output = False
            try:
                async with aclosing(generate(request)) as bursts:
                    async for burst in bursts:
                        has_output = has_output or any(map(_is_output, burst))
                        yield burst
                    return
            except GatewayError as error:
                if has_output or not LORA_EVICTED.search(error.message):
                    raise
                self._ids.discard(adapter.id)
        with_weights = replace(request, adapter_weights=await asyncio.to_thread(_read, adapter))
        async with aclosing(generate(with_weights)) as bursts:
            async for burst in bursts:
                self._ids.add(adapter.id)  # a response proves that the backend has the weights
                yield burst


def _is_output(delta: CompletionDelta) -> bool:
    return bool(delta.text or delta.token_ids or delta.finish_reason)


def _read(adapter: Adapter) -> AdapterWeights:
    """Read both arrays completely: the files may change while the request waits."""
    if adapter.path is None:
        raise ModelUnavailable(f"The adapter '{adapter.name}' has no files.")
    config, weights = FILES["tensorrt_llm"]
    try:
        return AdapterWeights(
            weights=read_array(adapter.path / weights).copy(),
            config=read_array(adapter.path / config).copy(),
        )
    except (OSError, InvalidLoRA) as error:
        raise ModelUnavailable(f"Cannot read the files of adapter '{adapter.name}'.") from error
