"""Readiness of models, with reasons: a snapshot that is read off the event loop.

The core's answers may take long. Since 2025-12 it asks every instance of a model, and the Python
backend gives each up to 5 s to answer; the index lists the repositories' folders.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from openai_frontend.errors import EngineRestarting, GatewayError, ModelFailed
from openai_frontend.runtime.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

NOT_READY = "it is not ready"  # the core gives no reason
_PASSING = frozenset({"LOADING", "UNLOADING"})
LATEST = -1  # Triton's number for the highest loaded version

INDEX_FOR_S = 0.25  # however many clients ask for it
# A snapshot waits this long for answers; later ones are in the next snapshot.
ANSWER_WITHIN_S = 0.1
# Twice what the Python backend gives an instance. A shorter limit would override Triton's answer.
UNREADY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelIndexEntry:
    """An entry of the repository index. `version` is None if no version was tried."""

    name: str
    version: int | None
    state: str  # UNKNOWN, READY, UNAVAILABLE, LOADING, UNLOADING
    reason: str  # why it is not ready; empty for a ready one

    @classmethod
    def read(cls, entry: Mapping[str, str], reason: str) -> "ModelIndexEntry":
        """Parse an entry as the core writes it."""
        version = int(entry["version"]) if "version" in entry else None
        return cls(entry["name"], version, entry.get("state", "UNKNOWN"), reason)


@dataclass(frozen=True, slots=True)
class ReadinessSnapshot:
    """The core's index and readiness at one moment. Replaced whole, never edited."""

    index: Sequence[ModelIndexEntry] = ()
    ready: frozenset[tuple[str, int]] = frozenset()  # model and version; LATEST is one of them
    server_ready: bool = False


class _ReadinessProbe:
    """A readiness query to the core and its last result."""

    __slots__ = ("_ask", "_ready", "asked_s", "pending")

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._ready = True  # assumed from the index until the core answers
        self.asked_s = float("-inf")  # on the monotonic clock
        self.pending = False

    def ask(self) -> None:
        """Query the core. Blocks."""
        self.asked_s, self.pending = time.monotonic(), True
        try:
            self._ready = self._ask()
        except GatewayError:
            self._ready = False
        finally:
            self.pending = False

    def is_ready(self, now_s: float) -> bool:
        """Return the last result; False if the query has been pending for UNREADY_AFTER_S."""
        return self._ready and not (self.pending and now_s - self.asked_s > UNREADY_AFTER_S)


class ReadinessMonitor:
    """Publishes `snapshot` after each change of the models by the gateway, and regularly while it
    may change by itself: while a model is loading or unloading, cannot serve, or has a backend that
    answers for itself. The folders of the repositories are listed only by an update.

    A probe that hangs keeps its thread; other probes and the index use a new one. The model keeps
    its last state until the probe returns, for at most UNREADY_AFTER_S.
    """

    def __init__(
        self,
        *,
        index: Callable[[], list[ModelIndexEntry]],
        server_is_ready: Callable[[], bool],
        model_is_ready: Callable[[str, int], bool],
        may_change: Callable[[str, int], bool] = lambda name, version: True,
    ) -> None:
        """Takes the three queries to the core. Each blocks and may raise GatewayError.

        `may_change`: whether a model's readiness may change without a load or unload.
        """
        self._index = index
        self._may_change = may_change
        self._model_is_ready = model_is_ready
        self._snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="readiness-look")
        self._probe_thread = _new_probe_thread()
        self._lock = threading.Lock()
        self._server = _ReadinessProbe(server_is_ready)
        self._versions: dict[tuple[str, int], _ReadinessProbe] = {}
        self._failure: str | None = None
        self._closed = False
        self._asks: Sequence[_ReadinessProbe] = ()  # those that may change by themselves
        self._indexed_s = float("-inf")  # when the index was asked for, on the monotonic clock
        self._is_changing = True  # the index, or the readiness of models that are not in `_asks`
        self.snapshot = ReadinessSnapshot()

    async def watch(self, heartbeat: Heartbeat, models_change: Callable[[], bool]) -> None:
        """Take a snapshot at each beat at which it may have changed. `models_change`: whether the
        gateway is loading or unloading models.
        """
        while not self._closed:
            if self._failure is not None or self._is_changing or models_change():
                await self.refresh()
            elif self._asks:
                await self._run(self._ask_again)
            if any(probe.pending for probe in self._versions.values()):
                heartbeat.stay_busy(ANSWER_WITHIN_S)  # a hanging query has a timeout
            await heartbeat.next()

    async def refresh(self, changed: str | None = None) -> None:
        """Like `try_update`, from the event loop."""
        await self._run(partial(self.try_update, changed))

    async def refresh_index(self) -> None:
        """Like `refresh`, unless the index was read in the last INDEX_FOR_S seconds."""
        oldest_s = time.monotonic() - INDEX_FOR_S
        if self._indexed_s < oldest_s:
            await self._run(partial(self._update_older, oldest_s))

    async def _run(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._snapshot_thread, work)

    def _update_older(self, oldest_s: float) -> None:
        """Calls that came together share one update, which the first of them makes."""
        if self._indexed_s < oldest_s:
            self.try_update()

    def try_update(self, changed: str | None = None) -> None:
        """Like `update`; if the index cannot be read, log it once and keep the last snapshot."""
        failure = None
        try:
            self.update(changed)
        except GatewayError as error:
            failure = error.message
            if failure != self._failure and not self._closed:
                logger.warning("reading the model index failed: %s", failure)
        self._failure = failure

    def update(self, changed: str | None = None) -> None:
        """Take and publish a snapshot. Blocks: call it on a thread. Raises GatewayError.

        `changed` names a model that was loaded or restarted: its earlier results are dropped.
        """
        with self._lock:
            if changed is not None:
                self._versions = {
                    key: each for key, each in self._versions.items() if key[0] != changed
                }
            begun_s, index = time.monotonic(), self._index()
            self._indexed_s = begun_s
            self._versions = {
                key: self._versions.get(key) or _ReadinessProbe(partial(self._model_is_ready, *key))
                for key in _ready_versions(index)
            }
            self._ask([self._server, *self._versions.values()])
            self._publish(index)

    def _ask_again(self) -> None:
        with self._lock:
            self._ask([self._server, *self._asks])
            self._publish(self.snapshot.index)

    def close(self) -> None:
        """Stop querying the core, which is about to stop."""
        self._closed = True

    def end_threads(self) -> None:
        """Call after `close`, on a thread: waits for a running update, but not for a probe."""
        with self._lock:
            self._snapshot_thread.shutdown(wait=False)
            self._probe_thread.shutdown(wait=False)

    def _ask(self, probes: Iterable[_ReadinessProbe]) -> None:
        """Run probes for ANSWER_WITHIN_S, least recently run first."""
        if self._closed:
            return
        free = [probe for probe in probes if not probe.pending]
        queue = deque(sorted(free, key=lambda probe: probe.asked_s))
        asking = self._probe_thread.submit(_ask_each, queue)
        try:
            asking.result(ANSWER_WITHIN_S)
        except TimeoutError:  # one hangs: its thread ends with it; the next update uses a new one
            queue.clear()
            self._probe_thread.shutdown(wait=False)
            self._probe_thread = _new_probe_thread()

    def _publish(self, index: Sequence[ModelIndexEntry]) -> None:
        """`index` may be that of the last snapshot."""
        now = self._taken(index)
        self._asks = [each for key, each in self._versions.items() if self._may_change(*key)]
        settled = now.server_ready and all(key in now.ready for key in self._versions)
        self._is_changing = not settled or any(entry.state in _PASSING for entry in index)
        self.snapshot = now

    def _taken(self, index: Sequence[ModelIndexEntry]) -> ReadinessSnapshot:
        now_s = time.monotonic()
        ready = {key for key, probe in self._versions.items() if probe.is_ready(now_s)}
        latest = dict(sorted(self._versions))
        ready |= {(name, LATEST) for name, version in latest.items() if (name, version) in ready}
        return ReadinessSnapshot(tuple(index), frozenset(ready), self._server.is_ready(now_s))


def _ready_versions(index: Iterable[ModelIndexEntry]) -> list[tuple[str, int]]:
    return [
        (entry.name, entry.version)
        for entry in index
        if entry.state == "READY" and entry.version is not None
    ]


def _new_probe_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="readiness-ask")


def _ask_each(queue: deque[_ReadinessProbe]) -> None:
    while queue:
        try:
            probe = queue.popleft()
        except IndexError:  # the update has stopped waiting
            return
        probe.ask()


@dataclass(frozen=True, slots=True)
class ModelProblem:
    """Why a model cannot serve although Triton reports it ready: a hanging or dead engine."""

    reason: str
    retry_after_s: float | None = None  # expected recovery; None if unknown


class ModelHealth:
    """Known problems by model. Used on the event loop."""

    def __init__(self) -> None:
        self._problems: dict[str, ModelProblem] = {}

    def set(self, model_name: str, problem: ModelProblem) -> None:
        """Reject requests to the model until `clear`."""
        self._problems[model_name] = problem

    def clear(self, model_name: str) -> None:
        """Accept requests to the model again."""
        self._problems.pop(model_name, None)

    def reason(self, model_name: str) -> str | None:
        """Why the model cannot serve; None without a known problem."""
        problem = self._problems.get(model_name)
        return None if problem is None else problem.reason

    def check(self, model_name: str, *, called: str | None = None) -> None:
        """Raise ModelFailed or EngineRestarting if the model cannot serve.

        `called` is its name in the message.
        """
        problem = self._problems.get(model_name)
        if problem is None:
            return
        if problem.retry_after_s is None:
            raise ModelFailed(called or model_name, problem.reason)
        raise EngineRestarting(
            called or model_name, problem.reason, retry_after_s=problem.retry_after_s
        )
