"""Supervises the engines of all models: fails requests to one that hangs and restarts dead ones.

One timer for the process; no work per token.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from functools import partial

from openai_frontend.config.model_options import EngineLimits
from openai_frontend.errors import Conflict, EngineStalled, GatewayError, ModelFailed
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.runtime.heartbeat import BUSY_S
from openai_frontend.triton import Server
from openai_frontend.triton.engine_control import EngineControl
from openai_frontend.triton.model_health import ModelProblem
from openai_frontend.triton.responses import ResponseStream
from openai_frontend.triton.stall_detector import Stall, StallDetector

MIN_DELAY_S = 1.0
MAX_DELAY_S = 60.0


class RestartBackoff:
    """The recent restarts of one model's engine."""

    def __init__(self) -> None:
        self._started_s: deque[float] = deque()

    def next_delay_s(self, now_s: float, *, max_restarts: int, window_s: float) -> float | None:
        """Count a restart and return the seconds to wait before it; None if the limit is reached.

        The first delay is 1 s; each further one doubles, up to 60 s.
        """
        while self._started_s and self._started_s[0] <= now_s - window_s:
            self._started_s.popleft()
        count = len(self._started_s)
        if count >= max_restarts:
            return None
        self._started_s.append(now_s)
        return float(min(MIN_DELAY_S * 2 ** min(count, 30), MAX_DELAY_S))


logger = logging.getLogger(__name__)

# After an engine's process has ended, for the two checks that a stub of Triton needs, and a restart
SETTLE_S = 2.0
_DROPPED_WITHIN_S = 10.0  # or the instances hang
# A model was unloaded, or files or threads are short: the next check may succeed.
_FAILURES = (GatewayError, OSError, RuntimeError)
# A hanging engine gets this long to respond before it is restarted.
RESPOND_WITHIN_S = 3.0
# An engine without probes gets new requests after this.
RETRY_S = 30.0
DEFAULT_START_S = 20.0  # assumed duration of a restart until one was measured


class EngineSupervisor:
    """Run `watch` for as long as the server runs."""

    def __init__(
        self,
        server: Server,
        registry: ModelRegistry,
        metrics: GatewayMetrics,
        limits: EngineLimits,
    ) -> None:
        """`limits` apply to models without limits of their own."""
        self._limits = limits
        self._server = server
        self._registry = registry
        self._metrics = metrics
        self._control = EngineControl(server)
        # A process that dies before it is found is never found: its command line is gone
        registry.on_refresh.append(self._find_processes)
        self._stall_detector = StallDetector(
            self._limits_of, self._control.pending_tokens, every_s=BUSY_S
        )
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self._given_up: dict[str, object] = {}  # model -> identity of the engine that stays down
        self._backoffs: dict[str, RestartBackoff] = defaultdict(RestartBackoff)
        self._affected: dict[str, set[str]] = {}  # model -> those with its problem
        self._restart_s: dict[str, float] = {}  # model -> duration of its last restart
        self._seen: object = None  # the registry's snapshot at the last refresh of processes

    @property
    def given_up(self) -> frozenset[str]:
        """The models whose engine stays down: it may not, or cannot, be restarted again."""
        return frozenset(self._given_up)

    async def watch(self) -> None:
        """Check the engines until cancelled; then cancel recoveries under way."""
        heartbeat = self._server.heartbeat
        heartbeat.work.append(self._has_work)
        self._control.watch_processes(partial(heartbeat.stay_busy, SETTLE_S))
        try:
            while True:
                await heartbeat.next()
                await self._check_once()
        finally:
            heartbeat.work.remove(self._has_work)
            self._control.end_watch()
            for task in self._recoveries.values():
                task.cancel()
            await asyncio.gather(*self._recoveries.values(), return_exceptions=True)

    def _has_work(self) -> bool:
        return bool(self._recoveries) or self._control.suspects_death

    async def _find_processes(self) -> None:
        try:
            await self._control.refresh()
        except _FAILURES:  # the next check repeats it
            logger.exception("finding the engines' processes failed")

    async def _check_once(self) -> None:
        try:
            seen = self._registry.snapshot_id()
            if seen is None:  # the models are still loading
                return
            if self._seen is not seen or self._control.lost_process:
                await self._control.refresh()
                self._seen = seen
            self.check(time.monotonic())
        except _FAILURES:  # others end `watch`, and with it the recoveries; `supervise` restarts it
            logger.exception("checking the engines failed")

    def check(self, now_s: float) -> None:
        """Start recoveries of broken engines. Takes 1.5 us for each request in flight."""
        stalls = list(self._stall_detector.check(self._server.streams(), now_s))
        try:
            self._check_engines()
        finally:  # afterwards: a dead engine is silent too, and its death is the better reason
            for stall in stalls:
                self._handle_stall(stall)

    def _check_engines(self) -> None:
        loaded = self._registry.loaded_in_core()
        for name in self._given_up.keys() - loaded:
            self._clear(name)
        failures = self._control.engine_failures(loaded)
        for name in self._given_up.keys() & loaded:
            if not self._control.has_no_other(name, self._given_up[name]):  # it was loaded again
                self._clear(name)
        for name, reason in failures.items():
            if name not in self._recoveries and name not in self._given_up:
                self._start_recovery(name, reason, ())

    def _limits_of(self, name: str) -> EngineLimits:
        return self._registry.options(name).engine_limits(self._limits)

    def _handle_stall(self, stall: Stall) -> None:
        name, waited = stall.stream.model_name, f"{stall.waited_s:.1f} s"
        what = "the first response" if stall.phase == "first_token" else "another response"
        self._metrics.engine_stalled(name, stall.phase)
        logger.error("model %s: a request has waited %s for %s", name, waited, what)
        message = f"The model '{name}' has not responded for {waited}; the request was cancelled."
        stream = self._stream(stall)
        if stream.unreleased:
            stream.abandon()  # otherwise requests that clients gave up would keep all slots
        else:
            stream.fail(partial(EngineStalled, message))
            stream.since_s += stall.waited_s  # the model has as long again to release it
        if not stall.hung:
            return
        for each in self._registry.composing_models_of(name) or (name,):
            if each not in self._recoveries and each not in self._given_up:
                self._start_recovery(each, f"its engine has not responded for {waited}", (stream,))

    @staticmethod
    def _stream(stall: Stall) -> ResponseStream:
        assert isinstance(stall.stream, ResponseStream)  # noqa: S101  only these are checked
        return stall.stream

    def _start_recovery(
        self, name: str, reason: str, unanswered: tuple[ResponseStream, ...]
    ) -> None:
        logger.error("model %s: %s", name, reason)
        work = self._recover(name, reason, unanswered)
        task = self._recoveries[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._recovery_ended, name))

    def _recovery_ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._recoveries[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("model %s: engine recovery failed", name, exc_info=error)
            self._given_up[name] = self._control.identity(name)

    async def _recover(
        self, name: str, reason: str, unanswered: tuple[ResponseStream, ...]
    ) -> None:
        """`unanswered`: the stalled requests of a hanging engine; empty if the engine died."""
        limits = self._limits_of(name)
        obstacle = self._control.restart_obstacle(name)
        can_restart = limits.restarts > 0 and obstacle is None
        if unanswered:
            self._set_problem(name, ModelProblem(reason))
            if await self._responds(name, unanswered, can_restart=can_restart):
                self._set_problem(name, None)
                logger.warning("model %s: engine is responding again", name)
                return
        if can_restart:
            await self._restart(name, reason, limits)
        elif limits.restarts:
            self._give_up(name, f"{reason}; {obstacle}")
        else:
            self._give_up(name, reason)

    async def _responds(
        self, name: str, unanswered: tuple[ResponseStream, ...], *, can_restart: bool
    ) -> bool:
        """Whether a hanging engine responds, or may get requests; if False, restart it."""
        probes = self._control.can_probe(name)
        responded = (
            self._control.wait_for_probe(name)
            if probes
            else self._wait_for_late_answer(name, unanswered)
        )
        timeout_s = None if probes else RETRY_S
        try:
            await asyncio.wait_for(responded, RESPOND_WITHIN_S if can_restart else timeout_s)
        except TimeoutError:
            return not can_restart
        return name not in self._control.engine_failures(frozenset({name}))

    async def _wait_for_late_answer(
        self, name: str, unanswered: tuple[ResponseStream, ...]
    ) -> None:
        """Return once one of the requests gets a response after all, or the engine has died."""
        while not any(stream.answered_late() for stream in unanswered):
            if name in self._control.engine_failures(frozenset({name})):
                return
            await self._server.heartbeat.next()

    async def _restart(self, name: str, reason: str, limits: EngineLimits) -> None:
        engine = self._control.identity(name)
        while True:
            delay_s = self._backoffs[name].next_delay_s(
                time.monotonic(), max_restarts=limits.restarts, window_s=limits.window_s
            )
            if delay_s is None:
                restarts = f"{limits.restarts} restarts in {limits.window_s:g} s"
                self._give_up(name, f"{reason}; giving up after {restarts}")
                return
            self._fail_requests(name, reason, delay_s)
            await asyncio.sleep(delay_s)
            try:
                if self._is_loaded(name, engine):
                    await self._restart_once(name)
                    return
            except Conflict:
                await self._registry.locks.wait_until_free(name)
            except GatewayError as error:
                reason = error.message
                logger.error("model %s: engine restart failed: %s", name, reason)
                # Its process may live a little longer: that is not another engine
                engine = self._control.with_processes(engine, name)
            if not self._is_loaded(name, engine):
                self._set_problem(name, None)
                await self._note_dropped(name)
                return

    async def _note_dropped(self, name: str) -> None:
        """The core has dropped the model: the registry gets the reason, which the core's index has
        once the old instances are gone.
        """
        end_s = time.monotonic() + _DROPPED_WITHIN_S
        while time.monotonic() < end_s and any(
            entry.name == name and entry.state == "UNLOADING"
            for entry in self._server.model_index()
        ):
            await self._server.heartbeat.next()
        await self._registry.refresh()

    def _is_loaded(self, name: str, engine: object) -> bool:
        """Whether the model still has this engine: it was neither loaded again nor unloaded."""
        loaded = self._registry.loaded_in_core()
        return name in loaded and self._control.has_no_other(name, engine)

    async def _restart_once(self, name: str) -> None:
        began_s = time.monotonic()
        with self._registry.locks.hold(name):
            await self._control.restart(name)
        self._restart_s[name] = time.monotonic() - began_s
        self._set_problem(name, None)
        self._metrics.engine_restarted(name)
        logger.warning("model %s: engine restarted", name)
        await self._registry.refresh()

    def _fail_requests(self, name: str, reason: str, delay_s: float) -> None:
        """Fail the requests in flight; new ones get 503 with Retry-After until the restart."""
        message = f"{reason}; it is being restarted"
        self._set_problem(
            name, ModelProblem(message, delay_s + self._restart_s.get(name, DEFAULT_START_S))
        )
        self._fail_streams(name, message)
        self._control.fail_requests(name, message)

    def _give_up(self, name: str, reason: str) -> None:
        logger.error("model %s: stays down: %s", name, reason)
        self._given_up[name] = self._control.identity(name)
        self._set_problem(name, ModelProblem(reason))
        self._fail_streams(name, reason)

    def _clear(self, name: str) -> None:
        del self._given_up[name]
        self._set_problem(name, None)

    def _set_problem(self, name: str, problem: ModelProblem | None) -> None:
        """Set or clear the problem of a model and of the ensembles that contain it."""
        names = {name, *self._registry.ensembles_of(name)}
        if problem is None:
            for each in names | self._affected.pop(name, set()):  # also ensembles that are unloaded
                self._server.health.clear(each)
            return
        self._affected[name] = names | self._affected.get(name, set())
        for each in names:
            self._server.health.set(each, problem)

    def _fail_streams(self, name: str, reason: str) -> None:
        names = {name, *self._registry.ensembles_of(name)}
        for stream in self._server.streams():
            if stream.model_name not in names:
                continue
            stream.abandon()
            if not stream.done:
                stream.fail(partial(ModelFailed, stream.model_name, reason))
