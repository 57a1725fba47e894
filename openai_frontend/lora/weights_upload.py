"""Tells TensorRT-LLM an adapter's weights, which it caches under the adapter's id: with the first
request, and again where it has evicted them.
"""

import asyncio
import re
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

Bursts = AsyncGenerator[list[CompletionDelta], None]

# What its batch manager says (PeftCacheManager::addRequestPeft); backends put words around it
_EVICTED = re.compile(r"LoRA task \d+ not found in cache")


class WeightsUploader:
    """The adapters whose weights one backend has been told. Used on the event loop."""

    def __init__(self) -> None:
        self._ids: set[int] = set()

    async def generate(
        self, request: GenerationRequest, generate: Callable[[GenerationRequest], Bursts]
    ) -> Bursts:
        """What `generate` gives for the request and its adapter. A request that fails for want of
        weights before it has said anything is sent a second time, with them.
        """
        adapter = request.adapter
        if adapter is None:
            raise ValueError("the request has no adapter")
        if adapter.id in self._ids:
            said = False
            try:
                async with aclosing(generate(request)) as bursts:
                    async for burst in bursts:
                        said = said or any(map(_says_something, burst))
                        yield burst
                    return
            except GatewayError as error:
                if said or not _EVICTED.search(error.message):
                    raise
                self._ids.discard(adapter.id)
        told = replace(request, adapter_weights=await asyncio.to_thread(_read, adapter))
        async with aclosing(generate(told)) as bursts:
            async for burst in bursts:
                self._ids.add(adapter.id)  # by now it has them
                yield burst


def _says_something(delta: CompletionDelta) -> bool:
    return bool(delta.text or delta.token_ids or delta.finish_reason)


def _read(adapter: Adapter) -> AdapterWeights:
    """Both arrays, whole: what becomes of the files while the request waits is no matter."""
    if adapter.path is None:
        raise ModelUnavailable(f"The adapter '{adapter.name}' has no files.")
    config, weights = FILES["tensorrt_llm"]
    try:
        return AdapterWeights(
            weights=read_array(adapter.path / weights).copy(),
            config=read_array(adapter.path / config).copy(),
        )
    except (OSError, InvalidLoRA) as error:
        raise ModelUnavailable(f"The adapter '{adapter.name}' cannot be read.") from error
