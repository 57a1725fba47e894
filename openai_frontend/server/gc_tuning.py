"""Keeps garbage collections from pausing streams. docs/decisions/0012 has the figures."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

from openai_frontend.background_tasks import next_tick
from openai_frontend.models.registry import ModelRegistry

# Python's defaults are 700, 10 and 10. With these a collection checks at most 20,000 objects, which
# takes 6 ms; a full one, of all objects that are not frozen, follows after 20 million.
_THRESHOLDS = (2_000, 10, 1_000)
_CHECK_INTERVAL_S = 1.0

Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]


def freezing_heap(lifespan: Lifespan, registry: ModelRegistry) -> Lifespan:
    """Wraps the application's lifespan: freezes the heap each time the set of models changes."""

    @contextlib.asynccontextmanager
    async def wrapped(app: Any) -> AsyncGenerator[Any, None]:
        task = asyncio.create_task(_watch_models(registry))
        try:
            async with lifespan(app) as state:
                yield state
        finally:
            task.cancel()
            await asyncio.wait([task])

    return wrapped


async def _watch_models(registry: ModelRegistry) -> None:
    """Checks the models once a second, which takes about 10 us."""
    served: set[tuple[str, int]] | None = None
    while True:
        if registry.has_loaded():
            before, served = served, {(card.name, card.created) for card in registry.cards()}
            if before != served:
                freeze_heap(gone=before is not None and not before <= served)
        await next_tick(_CHECK_INTERVAL_S)


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
