"""The readiness snapshot, with a core whose results the test controls."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from openai_frontend.errors import GatewayError
from openai_frontend.runtime.heartbeat import Heartbeat
from openai_frontend.triton import model_health
from openai_frontend.triton.model_health import LATEST, ModelIndexEntry, ReadinessMonitor
from tests.blocking_calls import BlockingCallOnLoop


class Core:
    """A core of ready models whose model_health queries can hang, as they can since 2025-12."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.hanging: set[str] = set()
        self.unready: set[str] = set()
        self.index_failure: str | None = None
        self.go_on = threading.Event()
        self.hung: set[str] = set()  # models with a query that hangs or has hung
        self.answered = threading.Semaphore(0)  # results of hanging queries

    def index(self) -> list[ModelIndexEntry]:
        if self.index_failure is not None:
            raise GatewayError(self.index_failure)
        return [ModelIndexEntry(name, 1, "READY", "") for name in self.names]

    def model_is_ready(self, name: str, version: int) -> bool:
        if name in self.hanging:
            self.hung.add(name)
            self.go_on.wait(120)
            self.answered.release()
        return name not in self.unready

    def server_is_ready(self) -> bool:
        return not self.unready


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core("one", "other")
    yield core
    core.go_on.set()


@pytest.fixture
def monitor(core: Core) -> Iterator[ReadinessMonitor]:
    monitor = ReadinessMonitor(
        index=core.index, server_is_ready=core.server_is_ready, model_is_ready=core.model_is_ready
    )
    yield monitor
    monitor.close()
    monitor.end_threads()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, updates wait for all answers, on a machine that is busy too: no more query
    hangs.
    """
    return lambda: monkeypatch.setattr(model_health, "ANSWER_WITHIN_S", 60)


def ready(monitor: ReadinessMonitor) -> set[str]:
    return {name for name, version in monitor.snapshot.ready if version == LATEST}


def update_until(monitor: ReadinessMonitor, true: Callable[[], bool]) -> int:
    """Updates at least once; returns how often. One update is enough, unless its threads get no
    processor for as long as it waits.
    """
    deadline, updates = time.monotonic() + 30, 0
    while not updates or not true():
        assert time.monotonic() < deadline
        monitor.update()
        updates += 1
    return updates


def test_results_of_the_core(core, monitor, patient):
    """A model is ready if the core says so, whatever its index says."""
    patient()
    core.unready = {"one"}
    monitor.update()

    assert monitor.snapshot.ready == {("other", 1), ("other", LATEST)}
    assert not monitor.snapshot.server_ready


def test_hanging_probe_keeps_the_last_result(core, monitor):
    """The model keeps its state until the core returns."""
    monitor.update()
    core.hanging, core.unready = {"one"}, {"one"}
    update_until(monitor, lambda: core.hung == {"one"})
    assert ready(monitor) == {"one", "other"}

    core.go_on.set()
    assert core.answered.acquire(timeout=30)
    update_until(monitor, lambda: ready(monitor) == {"other"})


def test_hanging_probe_blocks_no_other(core, monitor, patient):
    """Other models and the index stay up to date."""
    core.hanging = {"one"}
    update_until(monitor, lambda: core.hung == {"one"})
    patient()
    core.unready = {"other"}
    core.names.append("new")
    monitor.update()

    assert ready(monitor) == {"one", "new"}


def test_several_hanging_probes(core, monitor, patient):
    """Each delays one update; afterwards all others run in each update."""
    core.names += ["third", "fourth"]
    core.hanging = {"one", "other", "third"}
    assert update_until(monitor, lambda: core.hung == core.hanging) >= 3
    patient()
    core.unready = {"fourth"}
    monitor.update()

    assert ready(monitor) == core.hanging


def test_probe_that_never_returns(core, monitor, patient, monkeypatch):
    """After UNREADY_AFTER_S its model counts as not ready."""
    monkeypatch.setattr(model_health, "UNREADY_AFTER_S", 0.0)
    core.hanging = {"one"}
    update_until(monitor, lambda: core.hung == {"one"})
    patient()
    monitor.update()

    assert ready(monitor) == {"other"}


def test_reloaded_model(core, monitor, patient):
    """Earlier results, also of pending probes, belong to the replaced model."""
    core.hanging, core.unready = {"one"}, {"one"}
    update_until(monitor, lambda: core.hung == {"one"})
    core.hanging, core.unready = set(), set()
    patient()
    monitor.update(changed="one")
    core.go_on.set()
    assert core.answered.acquire(timeout=30)

    assert ready(monitor) == {"one", "other"}


def test_unreadable_index(core, monitor, caplog):
    """The last snapshot stays, and the error is logged once."""
    monitor.try_update()
    core.index_failure = "the repository is away"
    for _ in range(2):
        monitor.try_update()

    assert ready(monitor) == {"one", "other"}
    assert [record.getMessage() for record in caplog.records] == [
        "reading the model index failed: the repository is away"
    ]


async def watched(core: Core, names: set[str], *, changes: list[bool]) -> list[str]:
    """The queries of a monitor that watches for some beats, with whether models change at each; the
    core is asked again about `names`.
    """
    queries: list[str] = []

    def index() -> list[ModelIndexEntry]:
        queries.append("index")
        return core.index()

    def model_is_ready(name: str, version: int) -> bool:
        queries.append(name)
        return core.model_is_ready(name, version)

    monitor = ReadinessMonitor(
        index=index,
        server_is_ready=core.server_is_ready,
        model_is_ready=model_is_ready,
        may_change=lambda name, version: name in names,
    )
    await monitor.refresh()
    queries.clear()
    heartbeat, beats = Heartbeat(busy_s=0.005, idle_s=0.005), iter(changes[1:])
    changing = changes[:1]

    def on_beat(late_s: float) -> None:
        try:
            changing[:] = [next(beats)]
        except StopIteration:
            monitor.close()

    heartbeat.on_beat.append(on_beat)
    await monitor.watch(heartbeat, lambda: changing[0])
    monitor.end_threads()
    return queries


@pytest.mark.parametrize(
    ("names", "changes", "queries"),
    [
        (set(), [False] * 3, []),
        ({"one"}, [False] * 2, ["one"] * 2),
        (set(), [False, True, False], ["index", "one", "other"]),
    ],
    ids=["settled", "own answers", "load"],
)
async def test_queries_of_an_idle_server(core, patient, names, changes, queries):
    """None without a reason: each costs an idle process CPU time."""
    patient()
    assert await watched(core, names, changes=changes) == queries


async def test_unready_model_is_asked_about(core, patient):
    """It may recover, whatever its backend is."""
    patient()
    core.unready = {"one"}
    assert await watched(core, set(), changes=[False]) == ["index", "one", "other"]


async def test_index_on_demand(core, monitor, patient, monkeypatch):
    """New folders appear in it, but it is not read for each of many clients."""
    patient()
    await monitor.refresh()
    core.names.append("new")
    await monitor.refresh_index()
    assert ready(monitor) == {"one", "other"}
    monkeypatch.setattr(model_health, "INDEX_FOR_S", 0.0)
    await monitor.refresh_index()

    assert ready(monitor) == {"one", "other", "new"}


async def test_clients_that_ask_together_share_one_index(monitor, core, monkeypatch):
    """A client that asks for many unknown models delays no change of the models."""
    monkeypatch.setattr(model_health, "INDEX_FOR_S", 60.0)
    reads: list[int] = []
    all_ask = threading.Event()

    def index():
        reads.append(1)
        all_ask.wait(120)
        return core.index()

    monkeypatch.setattr(monitor, "_index", index)
    asked = [asyncio.ensure_future(monitor.refresh_index()) for _ in range(20)]
    await asyncio.sleep(0)  # each has asked
    all_ask.set()
    await asyncio.gather(*asked)

    assert len(reads) == 1


async def test_blocking_calls_are_found(server):
    """The suite's guard fails queries to the core on the event loop's thread."""
    with pytest.raises(BlockingCallOnLoop, match="model_is_ready"):
        server._core.model_is_ready("mock", 1)
