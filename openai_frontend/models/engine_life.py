"""Looks after the engines of all models: ends what waits for one that hangs, and starts those again
that have died. One timer for the process; nothing is done for a token.
"""

import asyncio
import logging
import time
from collections import defaultdict
from functools import partial

from openai_frontend.errors import Conflict, EngineStalled, GatewayError, ModelFailed
from openai_frontend.metrics.gateway import GatewayMetrics
from openai_frontend.model_options import EngineLimits
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.models.restarts import Restarts
from openai_frontend.triton import Server
from openai_frontend.triton.engine_control import EngineControl
from openai_frontend.triton.model_health import ModelProblem
from openai_frontend.triton.responses import ResponseStream
from openai_frontend.triton.stall_detector import Stall, StallDetector

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
# An engine that hangs has this long to answer, before it is started again.
ANSWER_WITHIN_S = 3.0
# One that cannot be asked is tried with requests again after this.
TRY_AGAIN_S = 30.0
START_S = 20.0  # what a start is taken to last, until one has been seen


class EngineLife:
    """`watch` runs as long as the server does."""

    def __init__(
        self,
        server: Server,
        registry: ModelRegistry,
        metrics: GatewayMetrics,
        limits: EngineLimits,
    ) -> None:
        """`limits` hold for models that have none of their own; they may be set anew."""
        self.limits = limits
        self._server = server
        self._registry = registry
        self._metrics = metrics
        self._control = EngineControl(server)
        self._stall_detector = StallDetector(
            self._limits_of, self._control.pending_tokens, every_s=LOOK_EVERY_S
        )
        self._mending: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, object] = {}  # model -> the engine that is left as it is
        self._restarts: dict[str, Restarts] = defaultdict(Restarts)
        self._start_s: dict[str, float] = {}  # model -> what its last start took
        self._seen: object = None  # of the registry, when processes were last looked for

    async def watch(self) -> None:
        """Look again and again; what was begun ends with it."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                await self._look_once()
        finally:
            for task in self._mending.values():
                task.cancel()
            await asyncio.gather(*self._mending.values(), return_exceptions=True)

    async def _look_once(self) -> None:
        try:
            seen = self._registry.last_look()
            if seen is None:  # the models are still loading
                return
            if self._seen is not seen or self._control.lost_process:
                await self._control.refresh()
                self._seen = seen
            self.look(time.monotonic())
        except Exception:  # the edge of a task that nobody waits for: the next look may do better
            logger.exception("the engines could not be looked at")

    def look(self, now_s: float) -> None:
        """Begin to mend what is found to be broken. Takes 1.5 us for each request in flight."""
        for stall in self._stall_detector.check(self._server.streams(), now_s):
            self._stalled(stall)
        loaded = self._registry.in_triton()
        for name in self._left.keys() - loaded:
            self._forget(name)
        failures = self._control.engine_failures(loaded)
        for name in self._left.keys() & loaded:
            if self._left[name] != self._control.identity(name):  # somebody has loaded it again
                self._forget(name)
        for name, reason in failures.items():
            if name not in self._mending and name not in self._left:
                self._mend(name, reason, ())

    def _limits_of(self, name: str) -> EngineLimits:
        return self._registry.options(name).engine_limits(self.limits)

    def _stalled(self, stall: Stall) -> None:
        name, waited = stall.stream.model_name, f"{stall.waited_s:.1f} s"
        what = "the first response" if stall.phase == "first_token" else "another response"
        self._metrics.engine_stalled(name, stall.phase)
        logger.error("model %s: a request has waited %s for %s", name, waited, what)
        message = f"The model '{name}' has been silent for {waited}; the request was ended."
        stream = self._stream(stall)
        stream.fail(partial(EngineStalled, message))
        if not stall.hung:
            return
        for each in self._registry.parts_of(name) or (name,):
            if each not in self._mending and each not in self._left:
                self._mend(each, f"its engine has not answered for {waited}", (stream,))

    @staticmethod
    def _stream(stall: Stall) -> ResponseStream:
        assert isinstance(stall.stream, ResponseStream)  # noqa: S101  nothing else is looked at
        return stall.stream

    def _mend(self, name: str, reason: str, unanswered: tuple[ResponseStream, ...]) -> None:
        logger.error("model %s: %s", name, reason)
        work = self._revive(name, reason, unanswered)
        task = self._mending[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._mended, name))

    def _mended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._mending[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("model %s: its engine could not be mended", name, exc_info=error)
            self._left[name] = self._control.identity(name)

    async def _revive(self, name: str, reason: str, unanswered: tuple[ResponseStream, ...]) -> None:
        """`unanswered`: what a hanging engine has been asked; empty for a dead one."""
        limits = self._limits_of(name)
        obstacle = self._control.restart_obstacle(name)
        starts = limits.restarts > 0 and obstacle is None
        if unanswered:
            self._set(name, ModelProblem(reason))
            if await self._answers(name, unanswered, starts=starts):
                self._set(name, None)
                logger.warning("model %s: it is taken to answer again", name)
                return
        if starts:
            await self._start_again(name, reason, limits)
        elif limits.restarts:
            self._leave(name, f"{reason}; {obstacle}")
        else:
            self._leave(name, reason)

    async def _answers(
        self, name: str, unanswered: tuple[ResponseStream, ...], *, starts: bool
    ) -> bool:
        """Whether a hanging engine answers, or may be tried; False: it is to be started again."""
        probes = self._control.can_probe(name)
        asked = self._control.wait_for_probe(name) if probes else self._late(name, unanswered)
        patience_s = None if probes else TRY_AGAIN_S
        try:
            await asyncio.wait_for(asked, ANSWER_WITHIN_S if starts else patience_s)
        except TimeoutError:
            return not starts
        return name not in self._control.engine_failures(frozenset({name}))

    async def _late(self, name: str, unanswered: tuple[ResponseStream, ...]) -> None:
        """Return once one of the requests has been answered after all, or the engine is dead."""
        while not any(stream.answered_late() for stream in unanswered):
            if name in self._control.engine_failures(frozenset({name})):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _start_again(self, name: str, reason: str, limits: EngineLimits) -> None:
        engine = self._control.identity(name)
        while True:
            delay_s = self._restarts[name].begin(
                time.monotonic(), most=limits.restarts, window_s=limits.window_s
            )
            if delay_s is None:
                starts = f"{limits.restarts} starts in {limits.window_s:g} s"
                self._leave(name, f"{reason}; after {starts} it is left as it is")
                return
            self._give_up_requests(name, reason, delay_s)
            await asyncio.sleep(delay_s)
            if self._control.identity(name) != engine:  # it has been loaded again, or unloaded
                self._set(name, None)
                return
            try:
                await self._started(name)
            except Conflict:
                await self._registry.changes.settled(name)
            except GatewayError as error:
                reason = error.message
                logger.error("model %s: its engine did not start: %s", name, reason)
            else:
                return

    async def _started(self, name: str) -> None:
        began_s = time.monotonic()
        with self._registry.changes.change(name):
            await self._control.restart(name)
        self._start_s[name] = time.monotonic() - began_s
        self._set(name, None)
        self._metrics.engine_restarted(name)
        logger.warning("model %s: its engine was started again", name)
        await self._registry.refresh()

    def _give_up_requests(self, name: str, reason: str, delay_s: float) -> None:
        """What is in flight can come to no good end; what comes is told when to come again."""
        told = f"{reason}; it is being started again"
        self._set(name, ModelProblem(told, delay_s + self._start_s.get(name, START_S)))
        self._end_streams(name, told)
        self._control.fail_requests(name, told)

    def _leave(self, name: str, reason: str) -> None:
        logger.error("model %s stays down: %s", name, reason)
        self._left[name] = self._control.identity(name)
        self._set(name, ModelProblem(reason))
        self._end_streams(name, reason)

    def _forget(self, name: str) -> None:
        del self._left[name]
        self._set(name, None)

    def _set(self, name: str, condition: ModelProblem | None) -> None:
        """Of a model, and of the ensembles that it is a part of."""
        for each in (name, *self._registry.wholes(name)):
            if condition is None:
                self._server.health.clear(each)
            else:
                self._server.health.set(each, condition)

    def _end_streams(self, name: str, reason: str) -> None:
        names = {name, *self._registry.wholes(name)}
        for stream in self._server.streams():
            if stream.model_name not in names:
                continue
            stream.abandon()
            if not stream.done:
                stream.fail(partial(ModelFailed, stream.model_name, reason))
