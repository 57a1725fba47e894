"""What the scheduler says of itself now and then."""

from types import SimpleNamespace
from typing import Any

from openai_frontend.engines.vllm.scheduler_stats import PREEMPTIONS, SaysHowFull


class Scheduler:
    """What is used of vLLM's."""

    def __init__(self) -> None:
        self.kv_cache_manager = SimpleNamespace(usage=0.5)
        self.preempted: list[Any] = []

    def make_stats(self) -> None:
        """As vLLM's, where statistics are off."""

    def get_request_counts(self) -> tuple[int, int]:
        return 3, 2

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.preempted.append((request, timestamp))


def test_how_full_it_is() -> None:
    """Requests, cache and preemptions so far; then nothing for a quarter of a second."""

    class Saying(SaysHowFull, Scheduler):
        pass

    scheduler = Saying()
    scheduler._preempt_request("a", 1.0)
    scheduler._preempt_request("b", timestamp=2.0)
    told = scheduler.make_stats()

    assert scheduler.preempted == [("a", 1.0), ("b", 2.0)]
    assert (told.num_running_reqs, told.num_waiting_reqs, told.kv_cache_usage) == (3, 2, 0.5)
    assert told.kv_connector_stats == {PREEMPTIONS: 2}
    assert scheduler.make_stats() is None
