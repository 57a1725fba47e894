"""The processed media of one model: a cache, and one run of the processor for requests that need
the same image or audio at the same time.

Media is known by its digest, so that a known item costs no decoding and no processor run. vLLM's
own renderer would do all of it in one thread of this process, and decode each item again to find it
in its cache.
"""

import asyncio
import contextlib
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from openai_frontend.engines.engine import EngineError, Sample
from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.engines.vllm.media.worker import ItemRequest
from openai_frontend.engines.vllm.processes import children as vllm_processes
from openai_frontend.engines.vllm.stats import Histogram, histogram_samples
from openai_frontend.media.fork_server import Frames, PoolUnavailable, Reply
from openai_frontend.media.pool import WorkerPool
from openai_frontend.media.stages import LOG, Stage
from openai_frontend.triton import error_codes

TIMEOUT_S = 20.0  # per item
MEMORY_MIB = 2048  # per worker: an image of 25 million pixels takes up to 600
CACHE_MIB = 512
MAX_RUNNING = 512  # items that wait or are processed
MAX_RESENDS = 3
STAGES = "openai_frontend_media_stage_seconds"
STAGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20)
_MODULE = "openai_frontend.engines.vllm.media.worker"


@dataclass(frozen=True, slots=True)
class ProcessedItem:
    """An image or audio, as the engine gets it."""

    key: str
    item: Any  # vLLM's MultiModalKwargsItem: tensors on the buffers that came from the worker
    token_ids: list[int]  # instead of an image's placeholder; the encoder's prompt of audio
    mask: Any  # bool tensor: which tokens stand for the item; None: all
    embeds: int  # tokens that stand for the item
    nbytes: int
    stages: Sequence[Stage] = ()  # of the run that made it
    seconds: float = 0.0  # of an audio file


class MediaCache:
    """Processed items of one model. Not thread-safe: use it on the event loop."""

    def __init__(self, pool: WorkerPool, modality: str, *, max_bytes: int) -> None:
        from vllm.multimodal.inputs import MultiModalKwargsItem
        from vllm.v1.serial_utils import MsgpackDecoder

        self._pool = pool
        self._modality = modality
        self._decoder = MsgpackDecoder(MultiModalKwargsItem)
        self._items: OrderedDict[str, ProcessedItem] = OrderedDict()  # oldest first
        self._bytes, self._max_bytes = 0, max_bytes
        self._running: dict[str, asyncio.Task[ProcessedItem]] = {}
        self._waiters: Counter[str] = Counter()
        self._preparing: dict[str, asyncio.Task[Any]] = {}
        self._hits = self._misses = 0
        self._stage_s: dict[str, Histogram] = {}

    def known(self, keys: Sequence[str]) -> list[ProcessedItem] | None:
        """Return the items if all of them are known."""
        if not all(key in self._items for key in keys):
            return None
        self._hits += len(keys)
        return [self._known(key) for key in keys]

    async def processed(
        self, request: ItemRequest, frames: Frames, caller_id: str
    ) -> ProcessedItem:
        """Return an item, processed if it is new. The request with `caller_id` needs it.

        Raises ValueError if it is refused, EngineError if the processes cannot do it now.
        """
        key = request.key
        if key in self._items:
            self._hits += 1
            return self._known(key)
        running = self._running.get(key)
        if running is None:
            running = self._start(request, frames)
        else:
            self._hits += 1
        self._waiters[key] += 1
        try:
            item = await asyncio.shield(running)
            LOG.add(caller_id, item.stages)
            return item
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                self._forget(key, running)  # at once: a new request must not wait for it
                running.cancel()  # no effect once it has ended

    def preparing(self, request_id: str, prepare: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Return the task that prepares a request, which `cancel` stops."""
        task = asyncio.get_running_loop().create_task(prepare)
        self._preparing[request_id] = task
        task.add_done_callback(lambda _: self._preparing.pop(request_id, None))
        return task

    def cancel(self, request_id: str) -> None:
        """Stop preparing a request. An item that no other request needs leaves the queue."""
        if (task := self._preparing.get(request_id)) is not None:
            task.cancel()

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()

    def samples(self) -> Iterator[Sample]:
        """Items of requests, and those that needed no processor run, under vLLM's names."""
        yield "vllm:mm_cache_queries_total", {}, float(self._hits + self._misses)
        yield "vllm:mm_cache_hits_total", {}, float(self._hits)
        for stage, seconds in self._stage_s.items():
            labels = {"kind": self._modality, "stage": stage}
            yield from histogram_samples(STAGES, STAGE_S, seconds.snapshot(), labels)

    def _start(self, request: ItemRequest, frames: Frames) -> asyncio.Task[ProcessedItem]:
        if len(self._running) >= MAX_RUNNING:
            message = f"{MAX_RUNNING} items wait to be processed. Retry when some are done."
            raise EngineError(message, error_codes.UNAVAILABLE)
        self._misses += 1
        task = asyncio.get_running_loop().create_task(self._run(request, frames))
        self._running[request.key] = task
        return task

    async def _run(self, request: ItemRequest, frames: Frames) -> ProcessedItem:
        began_ns = monotonic_ns()
        try:
            outcome, found = await asyncio.wrap_future(self._pool.submit(request, frames))
        except PoolUnavailable as error:
            raise EngineError(str(error), error_codes.UNAVAILABLE) from error
        finally:
            self._forget(request.key, asyncio.current_task())
        return self._store(request.key, outcome, found, self._observed(outcome["stages"], began_ns))

    def _observed(self, reported: Mapping[str, Sequence[int]], began_ns: int) -> list[Stage]:
        """The stages that a worker reports, after the wait for it."""
        first_ns = min(begin_ns for begin_ns, _ in reported.values())
        stages = {"queue": (began_ns, first_ns), **reported}
        for name, (begin_ns, end_ns) in stages.items():
            histogram = self._stage_s.setdefault(name, Histogram(STAGE_S))
            histogram.add((end_ns - begin_ns) / 1e9)
        return [Stage(f"{self._modality} {name}", *times) for name, times in stages.items()]

    def _forget(self, key: str, task: asyncio.Task[Any] | None) -> None:
        if self._running.get(key) is task:
            del self._running[key]

    def _store(
        self,
        key: str,
        outcome: Mapping[str, Any],
        frames: Sequence[memoryview],
        stages: Sequence[Stage],
    ) -> ProcessedItem:
        import torch

        mask = outcome["mask"]
        known = ProcessedItem(
            key,
            self._decoder.decode(frames),
            outcome["token_ids"],
            None if mask is None else torch.tensor(mask, dtype=torch.bool),
            outcome["embeds"],
            sum(len(frame) for frame in frames),
            stages,
            outcome.get("seconds", 0.0),
        )
        self._items[key] = known
        self._bytes += known.nbytes
        while self._bytes > self._max_bytes:
            _, oldest = self._items.popitem(last=False)
            self._bytes -= oldest.nbytes
        return known

    def _known(self, key: str) -> ProcessedItem:
        self._items.move_to_end(key)
        return self._items[key]


def max_items(engine: Any, modality: str) -> int:
    """Items per request; 0 if the model does not take any."""
    if not engine.input_processor.supports_mm_inputs:
        return 0
    from vllm.multimodal import MULTIMODAL_REGISTRY

    info = MULTIMODAL_REGISTRY.get_processing_info(engine.model_config)
    return int(info.allowed_mm_limits.get(modality, 0))


def _check_reply(_: ItemRequest, reply: Reply) -> None:
    """Raises ValueError, or what indexing raises, for a reply of another form."""
    outcome, _frames = reply
    tokens, mask, stages = outcome["token_ids"], outcome["mask"], outcome["stages"]
    if not _are_of(int, tokens, [outcome["embeds"]]) or not stages:
        raise ValueError("token_ids")
    if mask is not None and not (_are_of(bool, mask) and len(mask) == len(tokens)):
        raise ValueError("mask")
    if type(outcome.get("seconds", 0.0)) not in (int, float):
        raise ValueError("seconds")
    for began_ns, ended_ns in stages.values():
        if not _are_of(int, [began_ns, ended_ns]):
            raise ValueError("stages")


def _are_of(kind: type, *lists: Sequence[Any]) -> bool:
    return all(type(each) is kind for values in lists for each in values)


def new_pool(
    modality: str, model_config: Any, *, processes: int, memory_mib: int = MEMORY_MIB
) -> WorkerPool:
    """Processes that run the model's processor; `start` returns their facts."""
    return WorkerPool(
        _MODULE,
        processes=processes,
        timeout_s=TIMEOUT_S,
        memory_mib=memory_mib,
        data=pickle.dumps((modality, model_config)),
        launch=vllm_processes.launch,
        check=_check_reply,
    )


def start_cache(
    engine: Any, modality: str, parameters: Mapping[str, str]
) -> tuple[MediaCache, dict[str, Any]]:
    """Start the processes, wait until they are ready and return their facts, see `media_worker`.

    `parameters` are those of config.pbtxt. Raises ValueError for one that is not a number,
    RuntimeError if a process fails.
    """
    processes = _parameter(parameters, f"{modality}_processes", min(4, os.cpu_count() or 1))
    cache_mib = _parameter(parameters, f"{modality}_cache_mib", CACHE_MIB)
    pool = new_pool(modality, engine.model_config, processes=processes)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(pool.close)
        facts = pool.start()
        made = MediaCache(pool, modality, max_bytes=cache_mib << 20)
        on_failure.pop_all()
    return made, facts


def _parameter(parameters: Mapping[str, str], name: str, default: int) -> int:
    given = parameters.get(name, str(default))
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise ValueError(f"config.pbtxt: parameters: {name}: {given!r} is not a positive integer")
    return int(given)


def _sender_cache(engine: Any) -> Any:
    """vLLM's mirror of the engine's cache. None if there is none, or if the engine does not report
    items that it has lost: a request that lacks one would fail.
    """
    if not versions.installed().has(capabilities.MEDIA_CACHE):
        return None
    cache = engine.input_processor.renderer.mm_processor_cache
    return cache if isinstance(cache, versions.image_sender_cache()) else None


class SentMedia:
    """Leaves out items that the engine's cache has, and sends them again if it has lost them.

    vLLM's sender cache mirrors the engine's, if both get the same items in the same order. They
    differ after a request that was not sent, or if the engine's cache was reset.
    """

    def __init__(self, engine: Any) -> None:
        self._cache = _sender_cache(engine)
        self.unanswered: dict[str, tuple[Any, list[Any], int]] = {}  # request, data, resends
        self.resends = 0  # total

    def leave_out(self, request: Any) -> None:
        """Remove from a request what the engine has. Call it right before sending."""
        if self._cache is None:
            return
        data = [feature.data for feature in request.mm_features]
        for feature in request.mm_features:
            feature.data, _ = self._cache.get_and_update_item((feature.data, []), feature.mm_hash)
        self.unanswered[request.request_id] = request, data, 0

    def lost(self, output: Any) -> Any:
        """Return the request with all its data if the engine lacks some of it, else None. The first
        output of a request makes its data unnecessary.
        """
        found = self.unanswered.pop(output.request_id, None)
        if found is None or self._cache is None or not (missing := output.mm_cache_miss_hashes):
            return None
        request, data, resends = found
        if resends == MAX_RESENDS:
            return None
        for mm_hash in missing:
            self._cache.invalidate(mm_hash)
        for feature, item in zip(request.mm_features, data, strict=True):
            self._cache.get_and_update_item((item, []), feature.mm_hash)
            feature.data = item
        self.unanswered[request.request_id] = request, data, resends + 1
        self.resends += 1
        return request
