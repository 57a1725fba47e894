"""The check after each fault finds every kind of leak and reports nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway_process import GatewayProcess
from tests.resilience.faults import leaking_server
from tests.resilience.faults.invariants import no_trace_left

pytestmark = pytest.mark.slow


class LeakingServer:
    """Runs `leaking_server` in a separate process."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, leaking_server.__file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.pid = self._process.pid

    def output(self) -> str:
        return self._log.read_text()

    def do(self, action: str) -> None:
        httpx.get(f"{self.url}/{action}").raise_for_status()

    def stop(self) -> None:
        self._process.communicate()  # closes stdin and waits


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeakingServer]:
    started = LeakingServer(tmp_path / "log")
    yield started
    started.stop()


LEAKS = {
    "thread": r"threads: \d+ before, \d+ now",
    "descriptor": r"descriptors: \d+ before, \d+ now",
    "child": "child processes: 0 before, 1 now",
    "memory": r"memory: 4[78]\.\d MiB more than before",
    "stuck": "in hand: openai_frontend_requests_running{} is 1",
    "unreleased": "in hand: openai_frontend_unreleased_requests{} is 1",
    "buffered": "in hand: openai_frontend_buffered_body_bytes{} is 4096",
    "pending": "in hand: nv_inference_pending_request_count{} is 1",
    "traceback": r"log: Traceback \(most recent call last\)",
    "task": "log: never retrieved",
    "renamed": "/metrics has no .'openai_frontend_requests_running'.",
}


def test_every_leak_of_the_server_is_tested():
    assert {action.strip("/") for action in leaking_server.ACTIONS} == set(LEAKS)


@pytest.mark.parametrize("leak", LEAKS)
async def test_each_leak_is_found_and_named(server, leak):
    with pytest.raises(AssertionError, match=LEAKS[leak]):
        async with no_trace_left(server, deadline_s=0.3):
            server.do(leak)


async def test_a_server_without_leaks_passes(server):
    """Leaks from before the block do not count."""
    for before in ("thread", "descriptor", "memory", "traceback"):
        server.do(before)

    passed = False
    async with no_trace_left(server):
        server.do("nothing")
        passed = True

    assert passed


async def test_expected_log_lines_are_allowed(server):
    """A fault may log the lines in `may_log`."""
    async with no_trace_left(server, may_log=["Traceback (most recent call last)"]):
        server.do("traceback")


async def test_unfinished_work_before_the_block_is_an_error(server):
    """There is no baseline while work is unfinished."""
    server.do("stuck")

    with pytest.raises(AssertionError, match="the gateway was at work before"):
        async with no_trace_left(server, deadline_s=0.2):
            pass


async def test_an_exception_in_the_block_is_raised_despite_leaks(server):
    async def fault() -> None:
        async with no_trace_left(server):
            server.do("stuck")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fault()


async def test_a_gateway_that_served_requests_leaves_nothing(mock_gateway: GatewayProcess):
    chat = {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with httpx.AsyncClient(base_url=mock_gateway.url) as client:
        await client.post("/v1/chat/completions", json=chat)

    async with (
        no_trace_left(mock_gateway),
        httpx.AsyncClient(base_url=mock_gateway.url) as client,
    ):
        for _ in range(20):
            response = await client.post("/v1/chat/completions", json=chat)
            assert response.status_code == 200
