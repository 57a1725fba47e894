"""The running process: uvicorn with our own start, signals and end (docs/lifecycle.md)."""

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import uvicorn

from openai_frontend.auth.authenticator import Authenticator
from openai_frontend.cli import banner
from openai_frontend.drain_state import DrainState
from openai_frontend.errors import ModelUnavailable
from openai_frontend.lifespan import Startup
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.server.certificates import Certificate
from openai_frontend.server.loop_watchdog import STARTUP_THRESHOLD_S, THRESHOLD_S, LoopWatchdog
from openai_frontend.server.metrics_server import MetricsServer
from openai_frontend.server.systemd import SystemdNotifier
from openai_frontend.supervise import supervise
from openai_frontend.triton import Server

logger = logging.getLogger(__name__)

# After the grace the core fails what still runs; so long may the answers take to say so
_LAST_WORDS_S = 10


@dataclass(frozen=True, slots=True)
class Resources:
    """What the process runs, as the application was wired."""

    triton: Server
    registry: ModelRegistry
    startup: Startup
    drain_state: DrainState


@dataclass(frozen=True, slots=True)
class ShutdownTimeouts:
    """How long a stop may take, in seconds."""

    delay_s: float  # requests are still taken; readiness has gone
    grace_s: float  # those that run may end

    @property
    def all_s(self) -> float:
        """With the time to say goodbye."""
        return self.delay_s + self.grace_s + _LAST_WORDS_S


class GatewayProcess(uvicorn.Server):
    """The first signal lets requests run out, for a while; the second ends all at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        inside: Resources,
        *,
        stop_times: ShutdownTimeouts,
        progress: banner.LoadProgress,
        place: banner.ListenAddress,
    ) -> None:
        super().__init__(config)
        self._triton = inside.triton
        self._registry = inside.registry
        self._drain_state = inside.drain_state
        self._progress = progress
        self._place = place
        self.stop_times = stop_times
        self.manager = SystemdNotifier()
        self.beside: MetricsServer | None = None
        self.keys: Authenticator | None = None  # None: no key needed
        self.certificate: Certificate | None = None  # None: no TLS
        self.ends_without_models = False  # if none can serve once they have loaded
        self._startup = inside.startup
        inside.startup.on_failure = self._stop
        self._watchdog = LoopWatchdog(threshold_s=STARTUP_THRESHOLD_S)
        self._tasks: list[asyncio.Task[None]] = []
        self._grace_ends_s = 0.0
        self._core_end: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and tells how the models load."""
        self._start(self._watchdog.run())
        self._start(self.manager.send_watchdog_pings())
        if self.certificate is not None:
            self.config.ssl = self.certificate.context
            self._start(supervise("watch certificates", self.certificate.watch))
        await super().startup(sockets)
        if self.beside is not None:
            self.beside.start(self.config.ssl)
        self._start(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the port; answers that are not over have what is left of the grace, then the core
        ends them.
        """
        loop = asyncio.get_running_loop()
        left_s = max(0.0, self._grace_ends_s - loop.time())
        self.config.timeout_graceful_shutdown = math.ceil(left_s) + _LAST_WORDS_S
        ending = loop.call_later(left_s, self._stop_core)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            if self._core_end is not None:  # else the lifespan has ended it, and waited for that
                await self._core_end
            if self.beside is not None:
                await self.beside.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self.manager.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In place of uvicorn's own, which raises the signal again once all is done."""
        loop = asyncio.get_running_loop()
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            signals.append(signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self.should_exit or self._drain_state.stopping:
            self._triton.remove_files()
            kill(128 + number)
        if not self._registry.has_loaded():  # nothing runs yet, and no load can be called back
            self._progress.clear()
            self._triton.remove_files()
            kill(0)
        self._drain_state.begin_stop()
        self._start(self._drain())

    async def _drain(self) -> None:
        """From the first signal to the moment at which the port may close."""
        times, loop = self.stop_times, asyncio.get_running_loop()
        self.manager.stopping(times.all_s)
        await asyncio.sleep(times.delay_s)
        self._drain_state.drain()
        self._grace_ends_s = loop.time() + times.grace_s
        requests = self.server_state.tasks
        logger.info("stopping: running_requests=%d grace_s=%g", len(requests), times.grace_s)
        while requests and (left_s := self._grace_ends_s - loop.time()) > 0:
            await asyncio.wait(set(requests), timeout=left_s)
        self.should_exit = True

    def _stop(self) -> None:
        """The start has failed."""
        self._drain_state.drain()
        self.should_exit = True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """It is cancelled at the end."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _announce(self) -> None:
        while not self._registry.has_loaded():
            self._progress.tick()
            await asyncio.sleep(0.2)
        self._watchdog.threshold_s = THRESHOLD_S
        self._progress.clear()
        cards = sorted(self._registry.cards(), key=lambda card: card.alias_of is not None)
        models = {  # aliases last: the example is for a model's own name
            card.name: {name for name, can in asdict(card.capabilities).items() if can}
            for card in cards
            if card.ready
        }
        unready = self._registry.unready()
        keys = self.keys is not None
        sys.stdout.write(banner.ready(self._place, models, keys=keys, unready=unready))
        sys.stdout.flush()
        if self.ends_without_models and not models:
            self._startup.failure = ModelUnavailable("no model can serve")
            self._stop()
            return
        self.manager.ready(banner.status(models, unready))

    def _stop_core(self) -> None:
        """What still runs has had its grace: the core fails it."""
        self._core_end = asyncio.get_running_loop().create_task(self._triton.stop())


def kill(code: int) -> None:
    """No goodbyes; but processes that engines have started must not outlive this one."""
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()  # which waits a while for what is still to be written
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
