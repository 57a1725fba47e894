"""SIGHUP while streams run, with a right file and with a broken one, under a service manager."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.faults.invariants import no_trace_left
from tests.faults.raw_stream import RawStream, tokens
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow

STREAMS, TOKENS = 100, 40  # of which there are 20 in a second
RIGHT = "max_n: 1\naccess_log: true\ntokenizer_threads: 1\n"
BROKEN = "max_n: [1\n"


class Manager:
    """A service manager's end of the socket. The signs of life are counted, the rest is kept."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.signs_of_life = 0

    async def told(self) -> list[str]:
        """The next message, line by line."""
        while True:
            message = await asyncio.get_running_loop().sock_recv(self._listener, 4096)
            if message != b"WATCHDOG=1":
                return message.decode().split("\n")
            self.signs_of_life += 1

    async def told_of_reload(self) -> str:
        """The status that a reload ends with."""
        begun, stamp = await self.told()
        assert begun == "RELOADING=1"
        assert int(stamp.removeprefix("MONOTONIC_USEC=")) > 0
        ready, status = await self.told()
        assert ready == "READY=1"
        return status.removeprefix("STATUS=")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        yield Manager(listener)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text("")
    return file


@pytest.fixture
def gateway(tmp_path: Path, config: Path, manager: Manager) -> Iterator[GatewayProcess]:
    mock_models.write_with_tokenizer(tmp_path / "models", "m", tokens_per_second=20)
    options = [f"--config={config}", "--max-messages=7"]
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as process:
        process.wait_until_ready()
        yield process


def status_of_two(gateway: GatewayProcess) -> int:
    """Of a request for two choices."""
    body = {"model": "m", "prompt": "a", "max_tokens": 1, "n": 2}
    return httpx.post(f"{gateway.url}/v1/completions", json=body).status_code


async def streams(gateway: GatewayProcess, length: int) -> list[RawStream]:
    """All of them, each with its first token."""
    return await asyncio.gather(
        *[RawStream.begun(gateway.port, "m", length) for _ in range(STREAMS)]
    )


async def ended(running: list[RawStream]) -> list[bytes]:
    return await asyncio.gather(*[each.rest() for each in running])


def reload(gateway: GatewayProcess, config: Path, text: str) -> None:
    config.write_text(text)
    os.kill(gateway.pid, signal.SIGHUP)


async def test_sighup_under_load(gateway: GatewayProcess, manager: Manager, config: Path) -> None:
    """The next request has the new settings, a broken file changes none, what cannot change is
    named; no stream loses a token; the manager is told each step.
    """
    async with asyncio.timeout(60):
        assert await manager.told() == ["READY=1", "STATUS=Serving m"]
        reload(gateway, config, "")  # what a first one brings with it, stays
        await manager.told_of_reload()
        await ended(await streams(gateway, 2))
        async with no_trace_left(gateway):
            running = await streams(gateway, TOKENS)
            statuses = [status_of_two(gateway)]
            outcomes = []
            for text in (RIGHT, BROKEN, "tokenizer_threads: 1\n"):
                reload(gateway, config, text)
                outcomes.append(await manager.told_of_reload())
                statuses.append(status_of_two(gateway))
            responses = await ended(running)
        os.kill(gateway.pid, signal.SIGTERM)
        stopping = await manager.told()
        code = await asyncio.to_thread(gateway.wait, 20)

    assert statuses == [200, 400, 400, 200]
    right, broken, back = outcomes
    assert right == "settings read again; changed: access_log, max_n"
    assert broken.startswith(f"settings stay as they were: {config}: while parsing")
    assert back == "settings read again; changed: access_log, max_n"
    assert [tokens(each) for each in responses] == [TOKENS] * STREAMS
    assert all(b"data: [DONE]" in each for each in responses)
    log = gateway.output()
    assert log.count("tokenizer_threads was changed: that takes effect at the next start") == 2
    assert log.count("the settings stay as they were: ") == 1
    assert "POST /v1/completions 400 " in log
    assert manager.signs_of_life > 0
    assert (stopping[0], code) == ("STOPPING=1", 0)
