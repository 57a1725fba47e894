"""The server process: uvicorn with our startup, signals and shutdown (docs/lifecycle.md)."""

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openai_frontend.auth.authenticator import Authenticator
from openai_frontend.errors import GatewayError, ModelUnavailable
from openai_frontend.lifespan import Startup
from openai_frontend.middleware.drain import DrainState
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.runtime.background_tasks import supervise
from openai_frontend.server.certificates import Certificate
from openai_frontend.server.internal_server import InternalServer, QuietServer
from openai_frontend.server.loop_watchdog import STARTUP_THRESHOLD_S, THRESHOLD_S, LoopWatchdog
from openai_frontend.server.systemd import SystemdNotifier
from openai_frontend.triton import Server

logger = logging.getLogger(__name__)

# After the grace period the core fails the remaining requests; time to send those responses
_FINAL_RESPONSES_S = 10


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts of the application that the process needs."""

    triton: Server
    registry: ModelRegistry
    startup: Startup
    drain_state: DrainState


@dataclass(frozen=True, slots=True)
class ShutdownTimeouts:
    """The phases of a shutdown, in seconds."""

    delay_s: float  # readiness fails, but requests are still accepted
    grace_s: float  # new requests are rejected; running ones can finish

    @property
    def total_s(self) -> float:
        """Including the time to send the final responses."""
        return self.delay_s + self.grace_s + _FINAL_RESPONSES_S


class StartupReporter(Protocol):
    """Tells the operator about the startup."""

    def loading(self) -> None:
        """Called several times a second while models load."""

    def clear(self) -> None:
        """Removes the progress display."""

    def ready(
        self,
        models: Mapping[str, Collection[str]],
        *,
        on_demand: Mapping[str, Collection[str]],
        loading: Collection[str],
        tensor_models: Mapping[str, Mapping[str, Any]],
        keys: bool,
        unready: Mapping[str, str],
    ) -> str:
        """Reports the models (name -> capabilities), those that a request loads apart with those of
        them that load now, and those that only KServe's protocol serves (name -> metadata). Returns
        a status line for systemd.
        """


class GrpcServer(Protocol):
    """The listener for gRPC, which has TLS of its own."""

    running: set[asyncio.Task[Any]]  # calls

    async def start(self) -> None:
        """Raises OSError if the port cannot be had."""

    async def stop(self, grace_s: float = 0.0) -> None:
        """Cancel the calls that still run after `grace_s` seconds."""


class GatewayProcess(QuietServer):
    """The first signal drains and stops the server; a second SIGINT or SIGTERM kills it."""

    def __init__(
        self,
        config: uvicorn.Config,
        resources: Resources,
        *,
        shutdown_timeouts: ShutdownTimeouts,
        reporter: StartupReporter,
    ) -> None:
        super().__init__(config, resources.triton.heartbeat)
        self._heartbeat.work.append(self._has_work)
        self._triton = resources.triton
        self._registry = resources.registry
        self._drain_state = resources.drain_state
        self._reporter = reporter
        self._shutdown_timeouts = shutdown_timeouts
        self.notifier = SystemdNotifier()
        self.internal_servers: list[InternalServer] = []
        self.grpc: GrpcServer | None = None  # None: gRPC is off
        self.authenticator: Authenticator | None = None  # None: no keys required
        self.certificate: Certificate | None = None  # None: no TLS
        self.exit_without_models = False  # stop if no model is ready after loading
        self.serves_tensors = True  # by KServe's protocol
        self._startup = resources.startup
        resources.startup.on_failure = self._stop
        self._watchdog = LoopWatchdog(self._heartbeat, threshold_s=STARTUP_THRESHOLD_S)
        self._tasks: list[asyncio.Task[None]] = []
        self._grace_ends_s = 0.0
        self._core_stop: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen before the models are loaded."""
        # uvloop would list each request's generators in a WeakSet, to close them when it ends; by
        # then all requests have ended. Unreferenced ones are closed as before.
        sys.set_asyncgen_hooks(firstiter=None)
        self._start(self._watchdog.run())
        self._start(self.notifier.send_watchdog_pings())
        if self.certificate is not None:
            self.config.ssl = self.certificate.context
            self._start(supervise("watch certificates", self.certificate.watch))
        await super().startup(sockets)
        for server in self.internal_servers:
            server.start(self.config.ssl)
        if self.grpc is not None:
            await self._start_grpc(self.grpc)
        self._start(self._report_models())

    async def _start_grpc(self, server: GrpcServer) -> None:
        try:
            await server.start()
        except OSError as error:
            logger.error("startup failed: %s", error)
            self._startup.failure = error
            self._stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the port. After the grace period the core fails requests that still run."""
        loop = asyncio.get_running_loop()
        left_s = max(0.0, self._grace_ends_s - loop.time())
        self.config.timeout_graceful_shutdown = math.ceil(left_s) + _FINAL_RESPONSES_S
        stop_core = loop.call_later(left_s, self._stop_core)
        try:
            await super().shutdown(sockets)
        finally:
            stop_core.cancel()
            if self._core_stop is not None:  # else the lifespan has stopped it
                await self._core_stop
            for server in self.internal_servers:
                await server.stop()
            if self.grpc is not None:
                await self.grpc.stop(_FINAL_RESPONSES_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self.notifier.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's handlers, which raise the signal again after the shutdown."""
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
        stopping = self.should_exit or self._drain_state.stopping
        if stopping and number == signal.SIGHUP:
            return  # a terminal that closes may send two
        if stopping:
            self._triton.remove_files()
            kill(128 + number)
        if not self._registry.has_loaded():  # no requests yet, and loading cannot be cancelled
            self._reporter.clear()
            self._triton.remove_files()
            kill(0)
        self._drain_state.begin_stop()
        self._close_after_responses()
        self._start(self._drain())

    def _close_after_responses(self) -> None:
        """Announce the close in responses of requests that already run: a client that reused such a
        connection would find it closed at the exit.
        """
        for connection in self.server_state.connections:
            if isinstance(connection, HttpToolsProtocol) and connection.cycle is not None:
                connection.cycle.keep_alive = False

    async def _drain(self) -> None:
        """From the first signal until the port closes."""
        timeouts, loop = self._shutdown_timeouts, asyncio.get_running_loop()
        self.notifier.stopping(timeouts.total_s)
        await asyncio.sleep(timeouts.delay_s)
        self._drain_state.drain()
        self._grace_ends_s = loop.time() + timeouts.grace_s
        running = len(self._requests())
        logger.info("stopping: running_requests=%d grace_s=%g", running, timeouts.grace_s)
        while (requests := self._requests()) and (left_s := self._grace_ends_s - loop.time()) > 0:
            await asyncio.wait(requests, timeout=left_s)
        self.exit()

    def _requests(self) -> set[asyncio.Task[None]]:
        servers: list[uvicorn.Server] = [self, *self.internal_servers]
        calls = set() if self.grpc is None else self.grpc.running
        return calls.union(*(server.server_state.tasks for server in servers))

    def _has_work(self) -> bool:
        """Whether models load at the start, or requests run."""
        return self._registry.is_starting() or bool(self._requests())

    def _stop(self) -> None:
        """Stops after a failed startup."""
        self._drain_state.drain()
        self.exit()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task until the shutdown cancels it."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _report_models(self) -> None:
        try:
            while self._registry.is_starting():
                self._reporter.loading()
                await asyncio.sleep(0.2)
        finally:
            self._reporter.clear()
        self._watchdog.threshold_s = THRESHOLD_S
        if self._startup.failure is not None:
            return
        cards = sorted(self._registry.cards(), key=lambda card: card.alias_of is not None)
        # Aliases last, so that examples use a model's own name
        models = {card.name: card.capabilities for card in cards if card.ready}
        absent = [card for card in cards if card.loads_on_demand]
        status = self._reporter.ready(
            models,
            on_demand={card.name: card.capabilities for card in absent},
            loading=[card.name for card in absent if card.absent == "loading"],
            tensor_models=await self._tensor_models(),
            keys=self.authenticator is not None,
            unready=self._registry.unready(),
        )
        if self.exit_without_models and not models:
            self._startup.failure = ModelUnavailable("no model can serve")
            self._stop()
            return
        self.notifier.ready(status)

    async def _tensor_models(self) -> Mapping[str, Mapping[str, Any]]:
        """The models that only KServe's protocol serves, with its metadata."""
        names = self._registry.tensor_models() if self.serves_tensors else []
        return {name: await asyncio.to_thread(self._metadata, name) for name in names}

    def _metadata(self, name: str) -> Mapping[str, Any]:
        try:
            decoupled = self._triton.model_is_decoupled(name)
            return {**self._triton.model_metadata(name), "decoupled": decoupled}
        except GatewayError:  # it has just become unready
            return {}

    def _stop_core(self) -> None:
        """The grace period is over: the core fails the remaining requests."""
        self._core_stop = asyncio.get_running_loop().create_task(self._triton.stop())


def kill(code: int) -> None:
    """Exits without a shutdown, but first kills the processes that engines have started."""
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()  # waits a short time for buffered lines
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
