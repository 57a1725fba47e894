"""Shutdown while 200 streams run: what each client receives, and when the process exits."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import mock_models
from tests.core.triton import python_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import TRACES
from tests.resilience.faults.raw_stream import RawStream

pytestmark = pytest.mark.slow

STREAMS = 200
RUNNING = "openai_frontend_requests_running{"
SHORT, LONG = 40, 3000  # tokens, at 20 per second
DRAIN_DELAY_S = 1
GRACE_S = 5  # a busy machine may delay the short streams, of 2 s, or the client by some seconds


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[GatewayProcess]:
    mock_models.write_with_tokenizer(tmp_path / "models", "m", tokens_per_second=20)
    with GatewayProcess(tmp_path / "models", tmp_path / "log", *options) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    options = f"--drain-delay-s={DRAIN_DELAY_S}", f"--graceful-shutdown-timeout-s={GRACE_S}"
    with started(tmp_path, *options) as process:
        yield process


@pytest.fixture
def delaying_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Its drain delay lasts until the test ends it."""
    with started(tmp_path, "--drain-delay-s=3600") as process:
        yield process


async def streams(gateway: GatewayProcess, lengths: list[int]) -> list[RawStream]:
    """Start a stream of each length and wait for the first token of each."""
    return await asyncio.gather(*[RawStream.begun(gateway.port, "m", each) for each in lengths])


def completion(gateway: GatewayProcess, max_tokens: int = 1) -> httpx.Response:
    body = {"model": "m", "prompt": "a", "max_tokens": max_tokens}
    return httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=120)


def running_requests(gateway: GatewayProcess) -> float:
    """Return the gateway's count of running generations."""
    metrics = httpx.get(f"{gateway.url}/metrics").text
    lines = (line.split() for line in metrics.splitlines())
    return sum(float(line[1]) for line in lines if line[0].startswith(RUNNING))


def status(gateway: GatewayProcess, probe: str) -> int:
    return httpx.get(f"{gateway.url}/health/{probe}").status_code


async def refused(gateway: GatewayProcess) -> httpx.Response:
    """Return the first answer that is not 200."""
    while (answer := completion(gateway)).status_code == 200:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0.1)
    return answer


async def test_sigterm_drains_200_streams(gateway: GatewayProcess) -> None:
    """Requests are refused after the drain delay, not before. Streams that end within the graceful
    shutdown timeout are complete, the others end with an error. The exit code is 0.
    """
    async with asyncio.timeout(300):
        running = await streams(gateway, [SHORT, LONG] * (STREAMS // 2))
        whole = asyncio.create_task(asyncio.to_thread(completion, gateway, LONG))
        while running_requests(gateway) <= STREAMS:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.05)
        began_s = time.monotonic()
        os.kill(gateway.pid, signal.SIGTERM)

        sent_away = await refused(gateway)
        accepted_s = time.monotonic() - began_s
        draining = [status(gateway, "ready"), status(gateway, "live")]
        responses = await asyncio.gather(*[each.rest() for each in running])
        not_streamed = await whole
        code = await asyncio.to_thread(gateway.wait)

    assert accepted_s > DRAIN_DELAY_S
    assert draining == [503, 200]
    assert (sent_away.status_code, sent_away.headers["retry-after"]) == (503, "5")
    assert sent_away.json()["error"]["code"] == "server_draining"
    assert all(each.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for each in responses[::2])
    assert all(b'"error"' in each and b"[DONE]" not in each for each in responses[1::2])
    assert not_streamed.status_code == 503
    assert not_streamed.json()["error"]["message"] == "the server is stopping"
    assert code == 0
    assert [trace for trace in TRACES if trace in gateway.output()] == []


async def test_a_second_sigterm_exits_immediately(delaying_gateway: GatewayProcess) -> None:
    """Even during the drain delay of the first one, which fails readiness at once and serves late
    requests.
    """
    gateway = delaying_gateway
    async with asyncio.timeout(300):
        running = await streams(gateway, [LONG] * STREAMS)
        os.kill(gateway.pid, signal.SIGTERM)
        while status(gateway, "ready") == 200:  # noqa: ASYNC110  two signals at once are one
            await asyncio.sleep(0.01)
        live = status(gateway, "live")
        late = completion(gateway)
        os.kill(gateway.pid, signal.SIGTERM)
        code = await asyncio.to_thread(gateway.wait)
        responses = await asyncio.gather(*[each.rest() for each in running])

    assert live == 200
    assert (late.status_code, late.headers["connection"]) == (200, "close")
    assert code == 128 + signal.SIGTERM
    assert all(b"[DONE]" not in each for each in responses)
    assert [trace for trace in TRACES if trace in gateway.output()] == []


def test_stop_after_a_failed_reload(tmp_path):
    """The process does not wait for the reload's record, which the core keeps until its timeout."""
    managed = "--model-control-mode=explicit", "--enable-model-management", "--load-model=*"
    with started(tmp_path, *managed, "--exit-timeout-s=600") as gateway:
        mock_models.write(tmp_path / "models", "m", fail_at_load="no weights")
        reload = httpx.post(f"{gateway.url}/v1/models/m/load", timeout=120)
        serves = completion(gateway)
        code = gateway.stop(signal.SIGTERM)

    assert (reload.status_code, serves.status_code) == (503, 200)
    assert code == 0
    assert "did not stop" not in gateway.output()


def test_running_request_closes_its_connection(tmp_path):
    """It began before the signal, and its response tells the client to go elsewhere."""
    with started(tmp_path) as gateway, ThreadPoolExecutor(1) as pool:
        running = pool.submit(completion, gateway, 100)
        while not running_requests(gateway):
            time.sleep(0.05)
        code = gateway.stop(signal.SIGTERM)
        response = running.result()

    assert (response.status_code, response.headers.get("connection")) == (200, "close")
    assert code == 0


FINALIZE = """
    def finalize(self):
        import pathlib, time
        time.sleep(1)
        pathlib.Path(%r).touch()
"""


def test_stop_after_a_poll_whose_reload_failed(tmp_path):
    """Nor for a reload that the core itself has begun; Python models still finalize."""
    polling = "--model-control-mode=poll", "--repository-poll-s=1"
    finalized = tmp_path / "finalized"
    python_models.write(tmp_path / "models", "python")
    with (tmp_path / "models" / "python" / "1" / "model.py").open("a") as source:
        source.write(FINALIZE % str(finalized))
    with started(tmp_path, *polling, "--exit-timeout-s=600") as gateway:
        mock_models.write(tmp_path / "models", "m", fail_at_load="no weights")
        gateway.wait_for_line("failed to load 'm' version 1")
        serves = completion(gateway)
        code = gateway.stop(signal.SIGTERM)

    assert (serves.status_code, code) == (200, 0)
    assert finalized.exists()
    assert "did not stop" not in gateway.output()
