"""Where the process stands on its way to the end. Knows neither HTTP nor signals."""

from collections.abc import Callable


class Life:
    """It serves; then it is leaving, ready no more; then it drains: nothing new is taken.

    Made for one process, changed by what hears its signals, read by what takes requests. No stage
    is ever left for an earlier one.
    """

    def __init__(self) -> None:
        self.leaving = False  # a stop was asked for; requests are taken as long as they come
        self.draining = False  # what runs may end, and no request is taken any more
        self._told: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether requests should come: what a load balancer asks."""
        return not self.leaving

    def leave(self) -> None:
        """Readiness goes, and time begins for those who look at it to notice."""
        self.leaving = True

    def drain(self) -> None:
        """From now on requests are refused."""
        self.leaving = self.draining = True
        told, self._told = self._told, []
        for call in told:
            call()

    def at_drain(self, call: Callable[[], None]) -> None:
        """`call` is called once, when the process begins to drain."""
        self._told.append(call)
