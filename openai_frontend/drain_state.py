"""Shutdown state of the process. Signal handlers change it; routers and middleware read it."""

from collections.abc import Callable


class DrainState:
    """Serving, then stopping (not ready, but still accepting requests), then draining (rejecting).

    The state never goes back.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.draining = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether a load balancer should send requests."""
        return not self.stopping

    def begin_stop(self) -> None:
        """Report not ready, while load balancers take the server out of rotation."""
        self.stopping = True

    def drain(self) -> None:
        """Reject new requests from now on."""
        self.stopping = self.draining = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when draining begins."""
        self._callbacks.append(callback)
