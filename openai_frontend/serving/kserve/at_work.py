"""Which models have requests at work: they stay, and come where they are asked for."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from openai_frontend.admission.concurrency_limits import ConcurrencyLimits
from openai_frontend.admission.queue_key import QueueKey
from openai_frontend.admission.triton_queue import triton_queue
from openai_frontend.errors import ModelNotFound
from openai_frontend.serving.admission.concurrency_limit import ConcurrencyLimiter, ModelSlots
from openai_frontend.serving.kserve.addresses import ModelAddress
from openai_frontend.serving.kserve.core import Core
from openai_frontend.serving.kserve.options import RequestOptions

Use = Callable[[str], AbstractAsyncContextManager[Any]]
LimitsOf = Callable[[str], ConcurrencyLimits]


class AtWork:
    """`async with at_work.on(model, key):` around all that is asked of a model for a request, and
    `at_work.place` around what the model does for it. `key` is the digest of who asks.
    """

    def __init__(
        self, core: Core, use: Use, limiter: ConcurrencyLimiter, limits_of: LimitsOf
    ) -> None:
        """`use` keeps what it knows of every name, so it is told those of models alone."""
        self._core = core
        self._use = use
        self._limiter = limiter
        self._limits_of = limits_of

    @asynccontextmanager
    async def on(self, model: ModelAddress, key: str) -> AsyncGenerator[None, None]:
        """Raises ModelNotFound for what is in no repository, QueueFull where so many wait that
        one more may not.
        """
        if not self._core.model_is_ready(model.name) and not self._is_in_a_repository(model.name):
            raise ModelNotFound(f"there is no model '{model.name}'", param="model")
        self._slots(model).check(QueueKey(key))
        async with self._use(model.name):
            yield

    @asynccontextmanager
    async def place(
        self, model: ModelAddress, key: str, options: RequestOptions
    ) -> AsyncGenerator[RequestOptions, None]:
        """Waits for a place; gives the options as the core is to have them, with what is left of
        the request's own timeout.
        """
        slots, waits_us = self._slots(model), options.timeout_us
        turn = QueueKey(key, self._priority(model, options.priority))
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        granted = await slots.acquire(1, turn, timeout_s=waits_us / 1e6 if waits_us else None)
        try:
            waited_us = int((clock() - begun_s) * 1e6)
            yield replace(options, timeout_us=max(1, waits_us - waited_us) if waits_us else 0)
        finally:
            slots.release(granted)

    def _slots(self, model: ModelAddress) -> ModelSlots:
        return self._limiter.slots(model.name, self._limits_of(model.name))

    def _priority(self, model: ModelAddress, level: int) -> int:
        """In our queue, of a level in the core's."""
        if not level:
            return 0
        return triton_queue(self._core.model_config(model.name, model.version)).priority(level)

    def _is_in_a_repository(self, name: str) -> bool:
        return any(line.name == name for line in self._core.model_index())
