"""The cancelled requests that Triton has not released yet. Used on the event loop."""

from typing import Protocol

from openai_frontend.lease import Lease


class Observer(Protocol):
    """Who counts them against a limit."""

    def retain(self, model_name: str, input_bytes: int) -> None:
        """A request was cancelled; the model may go on with it, and Triton has its inputs."""

    def release(self, model_name: str, input_bytes: int) -> None:
        """Triton has released it, or nobody expects that any more."""


class UnreleasedRequests:
    """Triton looks at a cancellation in its own queues alone. A model that runs already goes on
    unless it asks, so a client that hangs up does not end its request.
    """

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        # Held, so that the release finds them
        self._requests: dict[object, tuple[str, int, Lease | None]] = {}

    def __contains__(self, stream: object) -> bool:
        return stream in self._requests

    def add(
        self, stream: object, model_name: str, input_bytes: int, lease: Lease | None = None
    ) -> None:
        """A stream whose request was cancelled; `lease` is that of the client's request."""
        self._requests[stream] = (model_name, input_bytes, lease)
        if lease is not None:
            lease.retain()
        for observer in self.observers:
            observer.retain(model_name, input_bytes)

    def remove(self, stream: object) -> None:
        """It is released, or given up. Does nothing for a stream that is not here."""
        if (known := self._requests.pop(stream, None)) is not None:
            model_name, input_bytes, lease = known
            for observer in self.observers:
                observer.release(model_name, input_bytes)
            if lease is not None:
                lease.release()

    def clear(self) -> None:
        """The core is gone."""
        for stream in [*self._requests]:
            self.remove(stream)
