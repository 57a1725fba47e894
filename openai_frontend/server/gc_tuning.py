"""Keeps garbage collections from pausing streams, and what stays in memory in huge pages
(docs/decisions/0010-one-process.md, 0037-huge-pages.md).
"""

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import psutil

from openai_frontend.models.registry import ModelRegistry
from openai_frontend.runtime import huge_pages
from openai_frontend.runtime.background_tasks import in_daemon_thread, supervise
from openai_frontend.runtime.heartbeat import Heartbeat

# Python's defaults are 700, 10 and 10. With these a collection checks at most 20,000 objects, which
# takes 6 ms; a full one, of all objects that are not frozen, follows after 20 million.
_THRESHOLDS = (2_000, 10, 1_000)
_CHECK_INTERVAL_S = 1.0
_HUGE_PAGES_AFTER_S = 5.0  # requests that wait for the start come first

Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class CollectionLimit:
    """How often changes of the models may pause the event loop: with load on demand, clients cause
    them.
    """

    INTERVAL_S = 600.0
    # Sooner if unloaded models may occupy this much, because what they leave needs a collection
    GROWTH_BYTES = 256 << 20
    GROWN_INTERVAL_S = 30.0

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used_bytes: Callable[[], int] = _resident_bytes,
    ) -> None:
        self._clock = clock
        self._used_bytes = used_bytes
        self._collected_s = float("-inf")
        self._bytes_after = 0

    def allows(self) -> bool:
        """Whether a collection may run now."""
        passed_s = self._clock() - self._collected_s
        if passed_s >= self.INTERVAL_S:
            return True
        if passed_s < self.GROWN_INTERVAL_S:
            return False
        return self._used_bytes() - self._bytes_after >= self.GROWTH_BYTES

    def collected(self) -> None:
        """Record that a collection has run."""
        self._collected_s, self._bytes_after = self._clock(), self._used_bytes()


def freezing_heap(lifespan: Lifespan, registry: ModelRegistry, heartbeat: Heartbeat) -> Lifespan:
    """Wraps the application's lifespan: freezes the heap after changes of the set of models."""

    @contextlib.asynccontextmanager
    async def wrapped(app: Any) -> AsyncGenerator[Any, None]:
        watch = partial(_watch_models, registry, CollectionLimit(), heartbeat)
        task = asyncio.create_task(supervise("freeze the heap", watch))
        try:
            async with lifespan(app) as state:
                yield state
        finally:
            task.cancel()
            await asyncio.wait([task])

    return wrapped


async def _watch_models(
    registry: ModelRegistry, limit: CollectionLimit, heartbeat: Heartbeat
) -> None:
    frozen: set[tuple[str, int]] | None = None  # the models at the last collection
    gone = False  # whether one of them, or a later one, was unloaded since
    served: set[tuple[str, int]] = set()
    seen: object = None  # the registry's snapshot at the last check
    collapse_s = math.inf  # when what stays moves to huge pages
    while True:
        if (snapshot := registry.snapshot_id()) is not seen:
            seen = snapshot
            before, served = served, {(card.name, card.created) for card in registry.cards()}
            gone = gone or (frozen is not None and not before <= served)
        if seen is not None and (gone or frozen != served) and limit.allows():
            freeze_heap(gone=gone)
            limit.collected()
            frozen, gone = served, False
            collapse_s = time.monotonic() + _HUGE_PAGES_AFTER_S
        if time.monotonic() >= collapse_s:
            collapse_s = math.inf
            # 25 s for 10 GiB, which the exit of the process must not wait for
            await in_daemon_thread("huge pages", huge_pages.collapse)
        await heartbeat.next(_CHECK_INTERVAL_S)


def freeze_heap(*, gone: bool = False) -> None:
    """Excludes all objects that exist now from collections: modules, models, tokenizers.

    `gone`: models were unloaded, so collect the objects frozen before once more. That pause is as
    long as every full collection would be without freezing.
    """
    if gone:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
