"""The requests that wait for a model: so many at most, each for so long, in fair turns."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from openai_frontend.admission.fair_queue import FairQueue
from openai_frontend.admission.queue_key import QueueKey
from openai_frontend.admission.service_rate import ServiceRateEstimator
from openai_frontend.errors import QueueFull, QueueTimeout, ServerDraining, ServerOverloaded


class QueueMetrics(Protocol):
    """Who counts what happens in queues."""

    def queue_changed(self, model: str, waiting: int) -> None:
        """So many wait now."""

    def unreleased_changed(self, model: str, count: int) -> None:
        """So many cancelled requests has Triton not released."""

    def queued(self, model: str, seconds: float) -> None:
        """One has left the queue, for whatever reason, after so long."""


class _Waiter:
    """One request; its future is how many places it got."""

    __slots__ = ("future", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def refuse(self, refusal: ServerOverloaded) -> None:
        """Nothing where its caller has gone already."""
        if not self.future.done():
            self.future.set_exception(refusal)


class WaitQueue:
    """One model's. Places are handed to it by `serve`."""

    def __init__(
        self,
        model_name: str,
        *,
        describe_load: Callable[[], str],
        give_back: Callable[[int], None],
        metrics: QueueMetrics | None = None,
    ) -> None:
        """`describe_load` is quoted in error messages; `give_back` takes back places that were
        given to a request whose caller went at the same moment.
        """
        self._model_name = model_name
        self._describe_load = describe_load
        self._give_back = give_back
        self._metrics = metrics
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._pace = ServiceRateEstimator()

    def __len__(self) -> int:
        return len(self._queue)

    def check(self, turn: QueueKey, longest: int) -> None:
        """Raises QueueFull where a newcomer would find the line full: of `longest` requests, and
        none that gives way.
        """
        if len(self._queue) >= longest and self._queue.eviction_candidate(turn) is None:
            raise self.full()

    async def wait(self, wanted: int, turn: QueueKey, *, longest: int, timeout_s: float) -> int:
        """The places that it got. Raises QueueFull, QueueTimeout or ServerDraining; whoever is
        cancelled here has left the line.
        """
        self._make_room(turn, longest)
        loop = asyncio.get_running_loop()
        waiter, begun_s = _Waiter(wanted), loop.time()
        if not self._queue:
            self._pace.begin(begun_s)
        self._queue.add(waiter, turn)
        self._tell_length()
        timer = loop.call_later(timeout_s, self._give_up, waiter, timeout_s)
        try:
            granted = await waiter.future
        except asyncio.CancelledError:
            if _was_granted(waiter.future):
                self._give_back(waiter.future.result())
            raise
        finally:
            timer.cancel()
            self._queue.remove(waiter)
            self._tell_left(loop.time() - begun_s)
        return granted

    def serve(self, grant: Callable[[int], int]) -> None:
        """`grant` says how many places the next in turn gets of those that it wants."""
        while self._queue:
            waiter, turn = self._queue.take()
            if waiter.future.done():  # its caller has gone, and has had no turn yet to leave
                continue
            granted = grant(waiter.wanted)
            self._queue.charge(turn, granted - 1)
            self._pace.moved(waiter.future.get_loop().time())
            waiter.future.set_result(granted)
            return

    def reject_all(self) -> None:
        """Nobody who waits is served any more."""
        while self._queue:
            self._queue.take()[0].refuse(ServerDraining())

    def full(self) -> QueueFull:
        """What one is told who cannot even wait."""
        return QueueFull(self._standing(), retry_after_s=self._retry_after_s())

    def _make_room(self, turn: QueueKey, longest: int) -> None:
        """Who has most of a full line gives way to who has less."""
        if len(self._queue) < longest:
            return
        leaving = self._queue.eviction_candidate(turn)
        if leaving is None:
            raise self.full()
        self._queue.remove(leaving)
        leaving.refuse(self.full())

    def _give_up(self, waiter: _Waiter, waited_s: float) -> None:
        self._queue.remove(waiter)
        message = f"The request has waited for {waited_s:g} s. {self._standing()}"
        waiter.refuse(QueueTimeout(message, retry_after_s=self._retry_after_s()))

    def _standing(self) -> str:
        return f"{self._describe_load()}; {len(self._queue)} wait for the model."

    def _retry_after_s(self) -> float:
        ahead = max(1, len(self._queue))
        return self._pace.wait_s(ahead, asyncio.get_running_loop().time())

    def _tell_length(self) -> None:
        if self._metrics is not None:
            self._metrics.queue_changed(self._model_name, len(self._queue))

    def _tell_left(self, waited_s: float) -> None:
        self._tell_length()
        if self._metrics is not None:
            self._metrics.queued(self._model_name, waited_s)


def _was_granted(future: "asyncio.Future[int]") -> bool:
    """Whether it was, before whoever waits for it could know."""
    return future.done() and not future.cancelled() and future.exception() is None
