"""Sleep of models in this process: their engines give memory back, and a request wakes them."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from openai_frontend.errors import Conflict, GatewayError, ModelUnavailable
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import engine_sleep

logger = logging.getLogger(__name__)


class Gate(Protocol):
    """The queues of requests, which wait while a model sleeps."""

    def close(self, model_name: str, wake_s: float | None) -> None:
        """Let requests wait; the first one calls for a wake, which takes `wake_s` if known."""

    def open(self, model_name: str) -> None:
        """Let requests continue."""

    def reject(self, model_name: str, error: GatewayError) -> None:
        """Fail the requests that wait."""


class SleepMetrics(Protocol):
    """Receives the events of sleeping models."""

    def model_slept(self, model: str, freed_bytes: int) -> None:
        """The model sleeps."""

    def model_woke(self, model: str, seconds: float) -> None:
        """The model is awake again, after a wake of this duration."""

    def model_left(self, model: str) -> None:
        """The model no longer sleeps: it was unloaded, or its engine restarted."""


class ModelSleep:
    """Puts models to sleep and wakes them, one change per model at a time."""

    def __init__(self, registry: ModelRegistry, gate: Gate, metrics: SleepMetrics) -> None:
        self._registry = registry
        self._gate = gate
        self._metrics = metrics
        self._freed_bytes: dict[str, int] = {}  # of the models that sleep
        self._wake_s: dict[str, float] = {}  # duration of the last wake
        # Names of failed engines that stay down
        self.given_up: Callable[[], frozenset[str]] = frozenset

    def freed_bytes(self, name: str) -> int:
        """Bytes freed by the model's sleep; 0 while it is awake."""
        return self._freed_bytes.get(name, 0)

    def is_sleeping(self, name: str) -> bool:
        """Whether the model sleeps; also while it falls asleep or wakes."""
        return engine_sleep.is_sleeping(name)

    def check(self, name: str) -> None:
        """Raise ModelNotFound, ModelUnavailable, or Conflict if the model cannot sleep at all."""
        if (obstacle := self._registry.sleep_obstacle(name)) is not None:
            message = f"The model '{name}' cannot sleep: {obstacle}."
            raise Conflict(message, param="model", code="cannot_sleep")

    async def sleep(self, name: str, level: int) -> None:
        """Put the model to sleep; nothing changes if it sleeps already.

        Raises Conflict while requests run in it or if it cannot sleep.
        """
        self.check(name)
        if self.is_sleeping(name):
            return
        if not self._registry.use(name).is_idle:
            message = f"The model '{name}' cannot sleep while requests use it."
            raise Conflict(message, param="model", code="model_in_use")
        with self._registry.locks.hold(name):
            self._gate.close(name, self._wake_s.get(name))
            try:
                freed = await engine_sleep.sleep(name, level)
            except BaseException:
                if not self.is_sleeping(name):
                    self._gate.open(name)
                raise
            self._freed_bytes[name] = freed
        self._metrics.model_slept(name, freed)
        logger.info("model %s: sleeps at level %d, %d bytes freed", name, level, freed)

    async def wake(self, name: str) -> bool:
        """Wake the model; nothing changes if it is awake. False if its engine did not wake: see
        `wait_for_restart`.
        """
        await self._registry.locks.wait_until_free(name)
        if not self.is_sleeping(name):
            self._leave(name)
            return True
        with self._registry.locks.hold(name):
            begun_s = time.monotonic()
            try:
                await engine_sleep.wake(name)
            except ModelUnavailable as error:
                logger.error("%s", error.message)
                return False
        self._wake_s[name] = wake_s = time.monotonic() - begun_s
        self._metrics.model_woke(name, wake_s)
        logger.info("model %s: woke in %.3f s", name, wake_s)
        self._leave(name)
        return True

    async def wait_for_restart(self, name: str) -> None:
        """Wait until the supervisor has restarted an engine that did not wake.

        Raises ModelUnavailable if the engine stays down.
        """
        try:
            while (reason := engine_sleep.failure(name)) is not None:
                if name in self.given_up():
                    raise ModelUnavailable(f"The model '{name}' cannot serve: {reason}")
                await self._registry.next_heartbeat()
        finally:
            self._leave(name)

    def fail(self, name: str, error: GatewayError) -> None:
        """Fail the requests that wait for a model that cannot wake now; it sleeps on."""
        self._gate.reject(name, error)

    async def forget_others(self) -> None:
        """Forget models that sleep no more, because they were unloaded or loaded again."""
        for name in [*self._freed_bytes]:
            if not self.is_sleeping(name):
                self._leave(name)

    def _leave(self, name: str) -> None:
        if self._freed_bytes.pop(name, None) is not None:
            self._metrics.model_left(name)
        self._registry.use(name).restart_idle_time()
        self._gate.open(name)
