"""Statistics that the scheduler reports."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from openai_frontend.engines.vllm.stats import ADAPTERS, PREEMPTIONS, STEPS, TRANSFERS, StatsMixin

pytestmark = pytest.mark.slow  # imports vLLM


def request(adapter: str | None) -> Any:
    return SimpleNamespace(lora_request=adapter and SimpleNamespace(lora_name=adapter))


def step(tokens: int, output_tokens: list[int]) -> Any:
    """vLLM's SchedulerOutput: the tokens of a step, and the output tokens that its older requests
    had before.
    """
    old = SimpleNamespace(num_output_tokens=output_tokens)
    return SimpleNamespace(total_num_scheduled_tokens=tokens, scheduled_cached_reqs=old)


class Scheduler:
    """The parts of vLLM's scheduler that the mixin uses."""

    def __init__(self, *, lora: bool) -> None:
        self.kv_cache_manager = SimpleNamespace(usage=0.5)
        self.preempted: list[Any] = []
        self.lora_config = object() if lora else None
        self.running = [request(None), request("b"), request("a"), request("b")]
        self.waiting = [request("c"), request(None)]
        self.deferred_waiting = {"one of those that wait"}

    def make_stats(self, *given: Any) -> None:
        """Return None, as vLLM does with statistics disabled."""

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def update_from_output(self, scheduler_output: Any, model_runner_output: str) -> str:
        return model_runner_output

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.preempted.append((request, timestamp))


class StatsScheduler(StatsMixin, Scheduler):
    pass


def test_load_is_reported_at_intervals() -> None:
    """Requests, cache usage and preemptions so far; then nothing for 0.25 s."""
    scheduler = StatsScheduler(lora=False)
    scheduler._preempt_request("a", 1.0)
    scheduler._preempt_request("b", timestamp=2.0)
    stats = scheduler.make_stats()

    assert scheduler.preempted == [("a", 1.0), ("b", 2.0)]
    counts = (stats.num_running_reqs, stats.num_waiting_reqs, stats.num_skipped_waiting_reqs)
    assert (*counts, stats.kv_cache_usage) == (4, 1, 1, 0.5)
    assert stats.kv_connector_stats[PREEMPTIONS] == 2
    assert scheduler.make_stats() is None


def test_prompt_that_waits_for_another_engine_is_not_reported_with_every_step() -> None:
    """It keeps the engine stepping without requests, about once per millisecond."""
    scheduler = StatsScheduler(lora=False)
    scheduler.running = []

    assert scheduler.make_stats() is not None
    assert [scheduler.make_stats() for _ in range(5)] == [None] * 5


def test_freed_cache_is_reported_at_once() -> None:
    """When another engine has read the last prompt, no further step may come."""
    scheduler = StatsScheduler(lora=False)
    scheduler.running = []
    scheduler.make_stats()
    scheduler.kv_cache_manager.usage = 0.0

    assert scheduler.make_stats().kv_cache_usage == 0
    assert scheduler.make_stats() is None


def test_statistics_of_transfers_are_kept_until_they_are_reported() -> None:
    """vLLM passes them as the second argument, and forgets them."""
    scheduler = StatsScheduler(lora=False)
    scheduler.make_stats()
    for _ in range(3):
        data = {"bytes_transferred": [5], "transfer_duration": [0.5]}
        assert scheduler.make_stats(None, SimpleNamespace(data=data)) is None
    scheduler.running = []

    totals = scheduler.make_stats().kv_connector_stats[TRANSFERS]
    assert totals == {"bytes_transferred": 15, "transfer_duration": 1.5, "transfers": 3}


def test_idle_state_is_reported_at_once() -> None:
    """The next request, and with it the next report, may come much later."""
    scheduler = StatsScheduler(lora=False)
    scheduler.make_stats()
    scheduler.running = []

    assert scheduler.make_stats().num_running_reqs == 0


@pytest.mark.parametrize(("lora", "adapters"), [(False, None), (True, [["a", "b"], ["c"]])])
def test_running_and_waiting_adapters_are_reported(lora: bool, adapters: Any) -> None:
    """Each adapter is reported once; a model without LoRA reports None."""
    assert StatsScheduler(lora=lora).make_stats().kv_connector_stats[ADAPTERS] == adapters


def test_step_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's tokens count once; its duration counts once for each request that had output before.
    Steps without tokens, and the time before the first step, do not count.
    """
    times = iter([100.0, 100.02, 100.03, 130.0, 130.06])
    monkeypatch.setattr(time, "monotonic", lambda: next(times, 200.0))
    scheduler = StatsScheduler(lora=False)

    for made in (step(7, []), step(4, [1, 1, 0]), step(0, []), step(9, []), step(2, [3, 4])):
        assert scheduler.update_from_output(made, "what came of it") == "what came of it"
    steps = scheduler.make_stats().kv_connector_stats[STEPS]

    assert steps["tokens"] == {"counts": [0, 3, 1] + [0] * 11, "sum": 22}
    assert steps["seconds"]["counts"] == [0, 2, 0, 2] + [0] * 16
    assert steps["seconds"]["sum"] == pytest.approx(2 * 0.02 + 2 * 0.06)
