"""Sends an adapter's weights to TensorRT-LLM, which caches them under the adapter's id.

The first request carries them, and a later one if TensorRT-LLM has evicted them. Only the text of
an error says so, and a model may quote a client's words there. Therefore an eviction must have a
possible reason: weights were sent since, or these were sent long ago.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.generation import Adapter, AdapterWeights, CompletionDelta, GenerationRequest
from openai_frontend.models.lora.files import FILES, InvalidLoRA, read_array
from openai_frontend.runtime.triton_interface import LORA_EVICTED

Bursts = AsyncGenerator[list[CompletionDelta], None]

# A backend that restarted has no weights, although nothing was sent since.
UNEXPLAINED_EVICTION_S = 60.0


@dataclass(frozen=True, slots=True)
class _WeightsUpload:
    others: int  # events of other adapters' uploads before it was sent
    sent_s: float  # on the monotonic clock


class UploadLog:
    """The uploads to all models: an ensemble and a BLS model may share an engine and its cache,
    which their configurations do not say.
    """

    def __init__(self) -> None:
        # An upload is an event when it is sent and when it is answered: between the two the backend
        # evicts others for it, in an order of its own.
        self.events: Counter[int] = Counter()  # by adapter
        self.unanswered: Counter[int] = Counter()


class WeightsUploader:
    """Tracks which adapters one load of a model has the weights of. Used on the event loop."""

    def __init__(self, log: UploadLog) -> None:
        self._ids: set[int] = set()
        self._uploads: dict[int, _WeightsUpload] = {}  # the last one of each adapter
        self._events, self._unanswered = log.events, log.unanswered
        # Concurrent requests share the arrays, which live as long as one of them.
        self._weights: WeakValueDictionary[Adapter, AdapterWeights] = WeakValueDictionary()
        self._reads: dict[Adapter, asyncio.Task[AdapterWeights]] = {}

    async def generate(
        self, request: GenerationRequest, generate: Callable[[GenerationRequest], Bursts]
    ) -> Bursts:
        """Run `generate`. If it fails for lack of weights before any output, retry with weights."""
        adapter = request.adapter
        if adapter is None:
            raise ValueError("the request has no adapter")
        if adapter.id in self._ids:
            has_output, known = False, self._uploads[adapter.id]
            try:
                async with aclosing(generate(request)) as bursts:
                    async for burst in bursts:
                        has_output = has_output or any(map(_is_output, burst))
                        yield burst
                    return
            except GatewayError as error:
                if has_output or not self._is_evicted(adapter, known, error):
                    raise
                self._ids.discard(adapter.id)
        with_weights = replace(request, adapter_weights=await self._read(adapter))
        self._uploads[adapter.id] = _WeightsUpload(
            _others(self._events, adapter.id), time.monotonic()
        )
        self._events[adapter.id] += 1
        self._unanswered[adapter.id] += 1
        answered = False
        try:
            async with aclosing(generate(with_weights)) as bursts:
                async for burst in bursts:
                    self._ids.add(adapter.id)  # a response proves that the backend has the weights
                    if not answered:
                        answered = True
                        self._answer(adapter.id)
                    yield burst
        finally:
            if not answered:
                self._answer(adapter.id)

    async def _read(self, adapter: Adapter) -> AdapterWeights:
        if (shared := self._weights.get(adapter)) is not None:
            return shared
        reading = self._reads.get(adapter)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(_read, adapter))
            reading.add_done_callback(partial(self._share, adapter))
            self._reads[adapter] = reading
        return await asyncio.shield(reading)

    def _share(self, adapter: Adapter, read: asyncio.Task[AdapterWeights]) -> None:
        del self._reads[adapter]
        if not read.cancelled() and read.exception() is None:
            self._weights[adapter] = read.result()

    def _answer(self, adapter_id: int) -> None:
        self._events[adapter_id] += 1
        self._unanswered[adapter_id] -= 1

    def _is_evicted(self, adapter: Adapter, known: _WeightsUpload, error: GatewayError) -> bool:
        """Whether the error says that the weights of `known` were evicted, and they can have been.

        `known` was the adapter's last upload when the request began.
        """
        evicted = LORA_EVICTED.search(error.message)
        if evicted is None or evicted["id"] != str(adapter.id):
            return False
        is_old = time.monotonic() - known.sent_s >= UNEXPLAINED_EVICTION_S
        others = _others(self._events, adapter.id) > known.others
        return is_old or others or _others(self._unanswered, adapter.id) > 0


def _others(counts: Counter[int], adapter_id: int) -> int:
    return counts.total() - counts[adapter_id]


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
