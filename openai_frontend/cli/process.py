"""The running process: uvicorn with our own start, signals and end."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import uvicorn

from openai_frontend.access.entrance import Entrance
from openai_frontend.app import Startup
from openai_frontend.cli import announcement
from openai_frontend.cli.certificate import Certificate
from openai_frontend.cli.side_listener import SideListener
from openai_frontend.life import Life
from openai_frontend.models.registry import ModelRegistry
from openai_frontend.triton import Server

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# After the grace the core fails what still runs; so long may the answers take to say so
_LAST_WORDS_S = 10


@dataclass(frozen=True, slots=True)
class Inside:
    """What the process runs, as the application was wired."""

    triton: Server
    registry: ModelRegistry
    startup: Startup
    life: Life


class GatewayProcess(uvicorn.Server):
    """The first signal lets requests run out, for a while; the second ends all at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        inside: Inside,
        *,
        progress: announcement.LoadProgress,
        place: announcement.Place,
    ) -> None:
        super().__init__(config)
        self._triton = inside.triton
        self._registry = inside.registry
        self._life = inside.life
        self._progress = progress
        self._place = place
        self.beside: SideListener | None = None
        self.keys: Entrance | None = None  # looked at again on SIGHUP
        self.certificate: Certificate | None = None  # None: no TLS
        inside.startup.on_failure = self._stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and tells how the models load."""
        self._tasks = []
        if self.certificate is not None:
            self.config.ssl = self.certificate.context
            self._tasks.append(asyncio.create_task(self.certificate.follow()))
        await super().startup(sockets)
        if self.beside is not None:
            self.beside.start(self.config.ssl)
        self._tasks.append(asyncio.create_task(self._announce()))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more requests; those that run have the grace, then the core ends them."""
        for task in self._tasks:
            task.cancel()
        grace_s = self.config.timeout_graceful_shutdown or 0
        self.config.timeout_graceful_shutdown = grace_s + _LAST_WORDS_S
        ending = asyncio.create_task(self._end_after(grace_s))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            if self.beside is not None:
                await self.beside.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In place of uvicorn's own, which raises the signal again once all is done."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        if self.keys is not None:
            loop.add_signal_handler(signal.SIGHUP, self.keys.reload_soon)
        try:
            yield
        finally:
            for number in (*_STOP_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self.should_exit:
            self._triton.remove_files()
            end_at_once(128 + number)
        if not self._registry.has_loaded():  # nothing runs yet, and no load can be called back
            self._progress.clear()
            self._triton.remove_files()
            end_at_once(0)
        self._stop()

    def _stop(self) -> None:
        self._life.drain()
        self.should_exit = True

    async def _announce(self) -> None:
        while not self._registry.has_loaded():
            self._progress.tick()
            await asyncio.sleep(0.2)
        self._progress.clear()
        models = {
            card.name: {name for name, can in asdict(card.capabilities).items() if can}
            for card in self._registry.cards()
            if card.ready
        }
        sys.stdout.write(announcement.ready(self._place, models, keys=self.keys is not None))
        sys.stdout.flush()

    async def _end_after(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        await self._triton.stop()


def end_at_once(code: int) -> None:
    """No goodbyes; but processes that engines have started must not outlive this one."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
