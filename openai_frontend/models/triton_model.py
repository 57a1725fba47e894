"""One model in Triton's core: its readiness, and its requests as tensors.

Knows neither text nor request fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from openai_frontend.admission.queue import NO_LIMITS, NO_QUEUE, ConcurrencyLimits, TritonQueue
from openai_frontend.contracts import Outputs, TensorInput
from openai_frontend.errors import InferenceFailed, ModelNotFound, ModelUnavailable
from openai_frontend.infer_options import DEFAULT_OPTIONS, InferOptions
from openai_frontend.models.model_use import ModelUse
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
        options: InferOptions = DEFAULT_OPTIONS,
    ) -> ResponseStream: ...


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
                options=InferOptions(
                    priority=self.triton_queue.level(priority),
                    timeout_us=timeout_us or self._timeout_us(),
                ),
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
