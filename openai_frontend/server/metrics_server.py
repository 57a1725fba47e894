"""A second port of the same process. Starts and ends with the first; hears no signals."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn


class MetricsServer(uvicorn.Server):
    """uvicorn on the loop that already runs."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    def start(self, tls: ssl.SSLContext | None) -> None:
        """From now on the port answers."""
        self.config.load()
        self.config.ssl = tls
        self._serving = asyncio.get_running_loop().create_task(self.serve([self._listener]))

    async def stop(self) -> None:
        """Returns once nothing of it is left."""
        if self._serving is not None:
            self.should_exit = True
            await self._serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the first port's."""
        yield
