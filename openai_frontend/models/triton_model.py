"""One model in Triton's core: its readiness, its requests as tensors, and how long it is needed.

Knows neither text nor request fields.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.admission.queue import NO_LIMITS, NO_QUEUE, ConcurrencyLimits, TritonQueue
from openai_frontend.contracts import Outputs, TensorInput
from openai_frontend.errors import InferenceFailed, ModelNotFound, ModelUnavailable
from openai_frontend.triton import NOT_READY, ResponseStream


class Core(Protocol):
    """Triton's core as one model uses it. `triton.server` implements and documents it."""

    def model_is_ready(self, name: str, version: int = -1) -> bool: ...
    def model_failure(self, name: str, version: int = -1) -> str | None: ...
    def infer(
        self,
        model_name: str,
        inputs: Mapping[str, TensorInput],
        *,
        version: int = -1,
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
    ) -> ResponseStream: ...


class OnDemand(Protocol):
    """Loads models on demand and unloads idle ones."""

    async def ensure_loaded(self, model_name: str) -> None:
        """Return once the model is loaded. Raises ModelUnavailable."""

    def notify_idle(self) -> None:
        """Report that a model has become idle."""


class ModelUse:
    """Keeps a Triton model loaded; one for all names and all loads of the model.

    Enter it (`async with`) while a request runs in the model: it loads the model if necessary.
    """

    def __init__(self, model_name: str, uses: "ModelUses") -> None:
        self.model_name = model_name
        self.running = (
            0  # requests running in the model, including those whose clients disconnected
        )
        self.pins = 0  # requests that wait for the model, or looked it up and have not ended
        self.last_used = time.monotonic()  # seconds
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
        self._used()

    def pin(self) -> None:
        """Keep the model loaded until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """Once for each `pin`."""
        self.pins -= 1
        self._used()

    @property
    def is_idle(self) -> bool:
        """Whether no request runs in the model or has it pinned."""
        return not (self.running or self.pins)

    def _used(self) -> None:
        self.last_used = time.monotonic()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonModel:
    """A version of a Triton model under one of its names."""

    name: str  # as requested: may be an alias
    model_name: str  # in Triton
    version: int  # in Triton; -1 is the latest
    server: Core
    use: ModelUse  # shared by all names of the model
    concurrency_limits: ConcurrencyLimits = NO_LIMITS
    triton_queue: TritonQueue = NO_QUEUE  # Triton's own queue before the model

    def is_ready(self) -> bool:
        """Whether the model can serve now."""
        return self.server.model_is_ready(self.model_name, self.version)

    def failure(self) -> str:
        """Why the model cannot serve. Call it only if it is not ready."""
        failure = self.server.model_failure(self.model_name, self.version)
        return failure or NOT_READY

    def infer(
        self,
        inputs: Mapping[str, TensorInput],
        request_id: str,
        *,
        priority: int = 0,
        timeout_us: int = 0,  # in Triton's own queue; 0: the operator's setting
    ) -> ResponseStream:
        """Start a request. Call it within `async with use`, and cancel the stream at the end.

        `priority` is the caller's. Raises ModelUnavailable, not ModelNotFound, if the model was
        unloaded after the lookup.
        """
        try:
            return self.server.infer(
                self.model_name,
                inputs,
                version=self.version,
                request_id=request_id,
                priority=self.triton_queue.level(priority),
                timeout_us=timeout_us or self._timeout_us(),
            )
        except ModelNotFound as gone:
            message = f"The model '{self.name}' cannot serve: it is not loaded"
            raise ModelUnavailable(message) from gone

    async def infer_one(self, inputs: Mapping[str, TensorInput], request_id: str) -> Outputs:
        """Send a request and return its only response. Backends may add an empty final one."""
        first: Outputs | None = None
        async with self.use:
            stream = self.infer(inputs, request_id)
            try:
                async for responses in stream:
                    if first is None:
                        first = responses[0]
            finally:
                stream.cancel()
        if first is None:
            raise InferenceFailed("The model returned no response.")
        return first

    def _timeout_us(self) -> int:
        """The timeout in Triton's own queue, if the operator sets one and the queue allows requests
        to override it; 0 for the timeout in the model's config.
        """
        timeout_s = self.concurrency_limits.queue_timeout_s
        return int(timeout_s * 1e6) if timeout_s and self.triton_queue.takes_timeouts else 0
