"""How much each Triton model has to do, which decides when it may go. Knows no requests."""

import time
from typing import Protocol


class Demand(Protocol):
    """What brings models that are asked for, and takes idle ones away."""

    async def bring(self, model_name: str) -> None:
        """Returns once the model is loaded: at once where it is. Raises ModelUnavailable."""

    def idle(self) -> None:
        """Some model has nothing to do any more."""


class ModelUse:
    """A model of Triton's, whatever names it has and however often it is loaded.

    `async with` it while a request is at work in the model: it is loaded then, and stays.
    """

    def __init__(self, model_name: str, uses: "ModelUses") -> None:
        self.model_name = model_name
        self.running = 0  # requests at work in the model, also those that their clients left
        self.held = 0  # requests that wait for the model, or have found it and are not at an end
        self.last_used = time.monotonic()  # seconds
        self._uses = uses

    async def __aenter__(self) -> None:
        if (demand := self._uses.demand) is not None:
            await demand.bring(self.model_name)
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

    def hold(self) -> None:
        """Keeps the model where it is, until `release`."""
        self.held += 1

    def release(self) -> None:
        """As often as `hold`."""
        self.held -= 1
        self._used()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has to do with the model."""
        return not (self.running or self.held)

    def _used(self) -> None:
        self.last_used = time.monotonic()
        if self._uses.demand is not None and self.is_idle:
            self._uses.demand.idle()


class ModelUses(dict[str, ModelUse]):
    """By model; each is made when it is first asked for, and stays."""

    demand: Demand | None = None  # None: models come and go by hand alone

    def __missing__(self, model_name: str) -> ModelUse:
        use = self[model_name] = ModelUse(model_name, self)
        return use

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A cancelled request is at work until Triton releases it: the model may go on."""
        self[model_name].begin()

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released it."""
        self[model_name].end()
