"""Keeps Python's garbage collector from holding up streams. docs/decisions/0012 has the figures."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

from openai_frontend.models.registry import ModelRegistry

# New objects, then collections of the generation before: 20,000 objects at most in one look, which
# takes 6 ms, and all that are not frozen after 20 million. Python has 700, 10 and 10.
_THRESHOLDS = (2_000, 10, 1_000)
_LOOK_EVERY_S = 1.0

Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]


def freezing_heap(lifespan: Lifespan, registry: ModelRegistry) -> Lifespan:
    """The application's lifespan, with the collector tuned each time that models have changed."""

    @contextlib.asynccontextmanager
    async def settling(app: Any) -> AsyncGenerator[Any, None]:
        task = asyncio.create_task(_follow(registry))
        try:
            async with lifespan(app) as state:
                yield state
        finally:
            task.cancel()
            await asyncio.wait([task])

    return settling


async def _follow(registry: ModelRegistry) -> None:
    """Looks at the models once a second, which takes some 10 us."""
    served: set[tuple[str, int]] | None = None
    while True:
        if registry.has_loaded():
            before, served = served, {(card.name, card.created) for card in registry.cards()}
            if before != served:
                freeze_heap(gone=before is not None and not before <= served)
        await asyncio.sleep(_LOOK_EVERY_S)


def freeze_heap(*, gone: bool = False) -> None:
    """Takes all that lives now out of the collector's sight: modules, models, their tokenizers.

    `gone` says that some of what was taken out before has no use any more and is to be looked at
    again, once; that costs as long a pause as every full collection did without this.
    """
    if gone:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
