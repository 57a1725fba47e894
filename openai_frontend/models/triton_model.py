"""One model of the core's: whether it can serve, and its requests, tensors in and tensors out.

Knows no text and no names of fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from openai_frontend.admission.limits import NO_LIMITS, NO_QUEUE, ConcurrencyLimits, TritonQueue
from openai_frontend.contracts.contract import Outputs, TensorInput
from openai_frontend.errors import InferenceFailed, ModelNotFound, ModelUnavailable
from openai_frontend.models.lease import ModelLease
from openai_frontend.triton import NOT_READY, ResponseStream, Server


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonModel:
    """A version of a model of Triton's, by one of its names."""

    name: str  # by which it was asked for
    model_name: str  # in Triton
    version: int  # in Triton; -1 is the latest
    server: Server
    lease: ModelLease  # what the model has to do, under all of its names
    concurrency_limits: ConcurrencyLimits = NO_LIMITS
    triton_queue: TritonQueue = NO_QUEUE  # that Triton keeps in front of it

    def is_ready(self) -> bool:
        """Whether it can serve now."""
        return self.server.model_is_ready(self.model_name, self.version)

    def failure(self) -> str:
        """Why the model cannot serve, once it cannot."""
        failure = self.server.model_failure(self.model_name, self.version)
        return failure or NOT_READY

    def infer(
        self,
        inputs: Mapping[str, TensorInput],
        request_id: str,
        *,
        priority: int = 0,
        timeout_us: int = 0,  # in Triton's own queue; 0: as the operator says
    ) -> ResponseStream:
        """A request, to be begun within `use` and cancelled in the end; `priority` is the caller's.

        Raises ModelUnavailable where the model has gone since it was looked up: it is away, not
        unknown.
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
        """The one response of a request; backends may end it with a second one that is empty."""
        first: Outputs | None = None
        async with self.lease:
            stream = self.infer(inputs, request_id)
            try:
                async for responses in stream:
                    if first is None:
                        first = responses[0]
            finally:
                stream.cancel()
        if first is None:
            raise InferenceFailed("The model gave no response.")
        return first

    def _timeout_us(self) -> int:
        """How long a request waits in Triton's own queue, where its operator has said it and the
        queue takes a request's word; 0: as its config says.
        """
        timeout_s = self.concurrency_limits.queue_timeout_s
        return int(timeout_s * 1e6) if timeout_s and self.triton_queue.takes_timeouts else 0
