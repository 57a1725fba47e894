"""Messages to a service manager (sd_notify) while streams run."""

import asyncio
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.raw_stream import RawStream, tokens

pytestmark = pytest.mark.slow

STREAMS, TOKENS = 100, 40  # TOKENS: at 20 per second


class Manager:
    """The service manager's end of the socket. Counts watchdog pings and returns other messages.

    A thread reads them as they come: the socket keeps ten, and the gateway does not wait.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._messages = queue.SimpleQueue[bytes]()
        self.signs_of_life = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while message := self._listener.recv(4096):
            if message == b"WATCHDOG=1":
                self.signs_of_life += 1
            else:
                self._messages.put(message)

    async def told(self) -> list[str]:
        """Return the lines of the next message."""
        message = await asyncio.to_thread(self._messages.get, timeout=120)
        return message.decode().split("\n")

    def stop(self) -> None:
        """Call it when the gateway has ended."""
        self._listener.shutdown(socket.SHUT_RD)
        self._reader.join()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        started = Manager(listener)
        yield started
        started.stop()


@pytest.fixture
def gateway(tmp_path: Path, manager: Manager) -> Iterator[GatewayProcess]:
    mock_models.write_with_tokenizer(tmp_path / "models", "m", tokens_per_second=20)
    with GatewayProcess(tmp_path / "models", tmp_path / "log") as process:
        process.wait_until_ready()
        yield process


async def streams(gateway: GatewayProcess, length: int) -> list[RawStream]:
    """Start all streams and wait for the first token of each."""
    return await asyncio.gather(
        *[RawStream.begun(gateway.port, "m", length) for _ in range(STREAMS)]
    )


async def ended(running: list[RawStream]) -> list[bytes]:
    return await asyncio.gather(*[each.rest() for each in running])


async def test_manager_gets_ready_watchdog_and_stopping(
    gateway: GatewayProcess, manager: Manager
) -> None:
    """Watchdog pings continue under load, no stream loses a token, and SIGTERM ends with code 0."""
    async with asyncio.timeout(300):
        assert await manager.told() == ["READY=1", "STATUS=Serving m"]
        await ended(await streams(gateway, 2))
        async with no_trace_left(gateway):
            responses = await ended(await streams(gateway, TOKENS))
        os.kill(gateway.pid, signal.SIGTERM)
        stopping = await manager.told()
        code = await asyncio.to_thread(gateway.wait)

    assert [tokens(each) for each in responses] == [TOKENS] * STREAMS
    assert all(b"data: [DONE]" in each for each in responses)
    assert manager.signs_of_life > 0
    assert (stopping[0], code) == ("STOPPING=1", 0)
