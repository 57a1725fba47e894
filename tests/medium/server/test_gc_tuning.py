"""The garbage collector after the heap is frozen."""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from openai_frontend.models.model_card import ModelCard
from openai_frontend.runtime import background_tasks, huge_pages
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.server import gc_tuning


@dataclass
class FakeRegistry:
    """Maps model names to their load time, or None while they load."""

    models: dict[str, int] | None = None

    def snapshot_id(self) -> object:
        return self.models

    def cards(self) -> list[ModelCard]:
        return [
            ModelCard(name=name, created=created, ready=True)
            for name, created in (self.models or {}).items()
        ]


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restores the collector's settings after the test."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """Ends with no frozen objects; after each test it would take a second."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def collapses(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each move to huge pages, which would take this process a second."""
    calls: list[threading.Thread] = []
    monkeypatch.setattr(huge_pages, "collapse", lambda: calls.append(threading.current_thread()))
    monkeypatch.setattr(gc_tuning, "_HUGE_PAGES_AFTER_S", 0.0)
    return calls


@dataclass
class Settled:
    """Records the arguments of `freeze_heap`."""

    gone: list[bool] = field(default_factory=list)

    def __call__(self, *, gone: bool) -> None:
        self.gone.append(gone)


@contextlib.asynccontextmanager
async def running(registry: FakeRegistry) -> AsyncIterator[None]:
    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[str]:
        yield app

    heartbeat = Heartbeat(busy_s=0.005, idle_s=0.005)
    frozen = gc_tuning.freezing_heap(lifespan, registry, heartbeat)  # type: ignore[arg-type]
    async with frozen("app") as state:
        assert state == "app"
        yield


async def looked_at() -> None:
    await asyncio.sleep(0.03)


async def test_heap_is_frozen_after_changes_of_models(monkeypatch, collapses):
    """If a model is gone, frozen objects are collected first. Huge pages follow each time, in a
    thread for which the exit of the process does not wait.
    """
    calls, registry = Settled(), FakeRegistry()
    monkeypatch.setattr(gc_tuning, "freeze_heap", calls)
    monkeypatch.setattr(gc_tuning, "_CHECK_INTERVAL_S", 0.005)
    monkeypatch.setattr(gc_tuning.CollectionLimit, "INTERVAL_S", 0)

    async with running(registry):
        for models in (None, {"a": 1}, {"a": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 2}, {"a": 3}):
            registry.models = models
            await looked_at()

    assert calls.gone == [False, False, True, True]
    assert [each.daemon for each in collapses] == [True] * 4


async def test_heap_is_frozen_after_a_failure(monkeypatch, caplog):
    """Such as a shortage of threads, which is logged."""
    calls = Settled()
    results: Iterator[OSError | int] = iter([OSError("no thread"), 0])

    def collapse() -> int:
        if isinstance(result := next(results), OSError):
            raise result
        return result

    monkeypatch.setattr(huge_pages, "collapse", collapse)
    monkeypatch.setattr(gc_tuning, "freeze_heap", calls)
    monkeypatch.setattr(background_tasks, "RESTART_DELAY_S", 0.0)
    monkeypatch.setattr(gc_tuning, "_CHECK_INTERVAL_S", 0.005)
    monkeypatch.setattr(gc_tuning.CollectionLimit, "INTERVAL_S", 0)
    async with running(FakeRegistry({"a": 1})), asyncio.timeout(10):
        while len(calls.gone) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    assert "background task 'freeze the heap' failed" in caplog.text


async def test_swaps_of_models_cause_one_collection(monkeypatch):
    """However often clients have models loaded on demand in turn. It is not forgotten."""
    calls, registry = Settled(), FakeRegistry()
    monkeypatch.setattr(gc_tuning, "freeze_heap", calls)
    monkeypatch.setattr(gc_tuning, "_CHECK_INTERVAL_S", 0.005)

    async with running(registry):
        registry.models = {"a": 1}
        await looked_at()
        for created in range(2, 6):
            registry.models = {"ab"[created % 2]: created}
            await looked_at()
        assert calls.gone == [False]
        monkeypatch.setattr(gc_tuning.CollectionLimit, "INTERVAL_S", 0)
        await looked_at()

    assert calls.gone == [False, True]


def test_collections_are_rare():
    """One in ten minutes; one in 30 s while memory grows by 256 MiB in that time."""
    now_s, used = 0.0, 0
    limit = gc_tuning.CollectionLimit(lambda: now_s, lambda: used)

    def collections(seconds: int, growth_bytes: int) -> int:
        nonlocal now_s, used
        count = 0
        for _ in range(seconds):
            now_s, used = now_s + 1, used + growth_bytes
            if limit.allows():
                limit.collected()
                count += 1
        return count

    assert collections(1, 0) == 1
    assert collections(3_600, 1 << 10) == 6
    assert collections(3_600, 64 << 20) == 120


def test_new_objects_cause_no_full_collection():
    """As many as importing an engine creates; Python's thresholds would cause several."""
    gc_tuning.freeze_heap()
    before = gc.get_stats()[2]["collections"]

    made: list[list[object]] = [[] for _ in range(400_000)]

    assert gc.get_stats()[2]["collections"] == before
    assert len(made) == 400_000


class Cycle:
    """Garbage that reference counting does not free."""

    def __init__(self) -> None:
        self.itself = self


def test_frozen_objects_are_not_collected():
    """A full collection has almost nothing to do, and the generations are larger."""
    gc_tuning.freeze_heap(gone=False)

    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 1000
    assert gc.get_threshold()[0] > 700


@pytest.mark.parametrize("gone", [False, True])
def test_unloaded_models_are_freed(gone):
    cycle = Cycle()
    ended = weakref.ref(cycle)
    gc_tuning.freeze_heap(gone=False)
    del cycle

    gc_tuning.freeze_heap(gone=gone)

    assert gone == (ended() is None)
