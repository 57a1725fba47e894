"""How long a Triton model is needed: loads it before a request, and says when it is idle."""

import time
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from openai_frontend.admission.queue import ANONYMOUS, QueueKey


class OnDemand(Protocol):
    """Loads models on demand and unloads idle ones."""

    async def ensure_loaded(self, model_name: str, queue_key: QueueKey | None = ANONYMOUS) -> None:
        """Return once the model is loaded. Raises ModelUnavailable, QueueFull or QueueTimeout."""

    async def ensure_awake(self, model_name: str, queue_key: QueueKey) -> None:
        """Return once a loaded model no longer sleeps. Raises as `ensure_loaded` does."""

    def loading_together(
        self, names: Collection[str], queue_key: QueueKey
    ) -> AbstractAsyncContextManager[None]:
        """Enter it to load and wake the models for one request. Raises ModelUnavailable if they
        never fit beside each other.
        """

    def notify_idle(self) -> None:
        """Report that a model has become idle."""


class ModelUse:
    """Keeps a Triton model loaded; one for all names and all loads of the model.

    Enter it (`async with`) while a request runs in the model: it loads the model if necessary.
    """

    def __init__(self, model_name: str, uses: "ModelUses") -> None:
        self.model_name = model_name
        # Requests running in the model, including those whose clients disconnected
        self.running = 0
        self.pins = 0  # requests that wait for the model, or looked it up and have not ended
        self.last_used = time.monotonic()  # when a request last ended in the model, in seconds
        self._uses = uses

    async def __aenter__(self) -> None:
        if (demand := self._uses.demand) is not None:
            await demand.ensure_loaded(self.model_name)
        self.begin()  # no await after ensure_loaded: the model cannot be unloaded in between

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Count a running request until `end`."""
        self.running += 1

    def end(self) -> None:
        """Once for each `begin`."""
        self.running -= 1
        self.last_used = time.monotonic()
        if self._uses.demand is not None:
            self._notify()

    def pin(self) -> None:
        """Keep the model loaded until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """Once for each `pin`."""
        self.pins -= 1
        if self._uses.demand is not None:
            self._notify()

    @property
    def is_idle(self) -> bool:
        """Whether no request runs in the model or has it pinned."""
        return not (self.running or self.pins)

    def restart_idle_time(self) -> None:
        """The model was used, or loaded, just now."""
        self.last_used = time.monotonic()

    def _notify(self) -> None:
        if self._uses.demand is not None and self.is_idle:
            self._uses.demand.notify_idle()


class ModelUses(dict[str, ModelUse]):
    """The uses of models by Triton name, created at first use and never removed."""

    demand: OnDemand | None = None  # None: models are not loaded on demand

    def __missing__(self, model_name: str) -> ModelUse:
        use = self[model_name] = ModelUse(model_name, self)
        return use

    def retain(self, model_name: str, input_bytes: int) -> None:
        """Count a cancelled request until Triton releases it: the model may still run it."""
        self[model_name].begin()

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released the request."""
        self[model_name].end()
