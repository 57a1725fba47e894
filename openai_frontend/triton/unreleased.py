"""The cancelled requests that Triton has not released yet. Used on the event loop."""

from typing import Protocol


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
        self._requests: dict[object, tuple[str, int]] = {}  # held, so that the release finds them

    def __contains__(self, stream: object) -> bool:
        return stream in self._requests

    def add(self, stream: object, model_name: str, input_bytes: int) -> None:
        """A stream whose request was cancelled."""
        self._requests[stream] = (model_name, input_bytes)
        for observer in self.observers:
            observer.retain(model_name, input_bytes)

    def remove(self, stream: object) -> None:
        """It is released, or given up. Does nothing for a stream that is not here."""
        if (known := self._requests.pop(stream, None)) is not None:
            for observer in self.observers:
                observer.release(*known)

    def clear(self) -> None:
        """The core is gone."""
        for stream in [*self._requests]:
            self.remove(stream)
