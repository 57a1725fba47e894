"""How much each Triton model has to do, which decides when it may go. Knows no requests."""

import time
from typing import Protocol


class OnDemand(Protocol):
    """What brings models that are asked for, and takes idle ones away."""

    async def ensure_loaded(self, model_name: str) -> None:
        """Returns once the model is loaded: at once where it is. Raises ModelUnavailable."""

    def notify_idle(self) -> None:
        """Some model has nothing to do any more."""


class ModelLease:
    """A model of Triton's, whatever names it has and however often it is loaded.

    `async with` it while a request is at work in the model: it is loaded then, and stays.
    """

    def __init__(self, model_name: str, leases: "ModelLeases") -> None:
        self.model_name = model_name
        self.running = 0  # requests at work in the model, also those that their clients left
        self.pins = 0  # requests that wait for the model, or have found it and are not at an end
        self.last_used = time.monotonic()  # seconds
        self._leases = leases

    async def __aenter__(self) -> None:
        if (demand := self._leases.demand) is not None:
            await demand.ensure_loaded(self.model_name)
        self.begin()  # nothing else runs between a model's being there and this line

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """One more request is at work in the model, until `end`."""
        self.running += 1

    def end(self) -> None:
        """As often as `begin`."""
        self.running -= 1
        self._used()

    def pin(self) -> None:
        """Keeps the model where it is, until `release`."""
        self.pins += 1

    def unpin(self) -> None:
        """As often as `pin`."""
        self.pins -= 1
        self._used()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has to do with the model."""
        return not (self.running or self.pins)

    def _used(self) -> None:
        self.last_used = time.monotonic()
        if self._leases.demand is not None and self.is_idle:
            self._leases.demand.notify_idle()


class ModelLeases(dict[str, ModelLease]):
    """By model; each is made when it is first asked for, and stays."""

    demand: OnDemand | None = None  # None: models come and go by hand alone

    def __missing__(self, model_name: str) -> ModelLease:
        lease = self[model_name] = ModelLease(model_name, self)
        return lease

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A cancelled request is at work until Triton releases it: the model may go on."""
        self[model_name].begin()

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released it."""
        self[model_name].end()
