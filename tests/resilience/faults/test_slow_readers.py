"""Clients that do not read, and a process without free descriptors: limited cost, full recovery."""

import asyncio
import json
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import mock_models
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.invariants import no_trace_left

pytestmark = pytest.mark.slow

KIB = 1024
BUFFER = 1024 * KIB
# In addition to the buffer: the transport's buffer, one oversized write, data between two checks
BESIDE = 512 * KIB
READERS = 50
SEND_TIMEOUT_S = 1.5


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[GatewayProcess]:
    """`endless` fills any buffer within seconds; `burst` sends half a buffer and finishes."""
    folder = tmp_path_factory.mktemp("slow_readers")
    long = {"tokens": ["0123456789abcdef" * 256], "max_model_len": 10_000_000}  # 4 KiB each
    models: dict[str, dict[str, Any]] = {
        "endless": {**long, "tokens_per_second": 150},
        "burst": {**long, "answer_tokens": 150},
        "talks": {"tokens": ["a", "b"], "answer_tokens": 4},
    }
    for name, arguments in models.items():
        mock_models.write_with_tokenizer(folder / "models", name, **arguments)
    options = [f"--stream-buffer-bytes={BUFFER}", f"--send-timeout-s={SEND_TIMEOUT_S}"]
    with GatewayProcess(folder / "models", folder / "log", *options) as process:
        process.wait_until_ready()
        yield process


def ask(gateway: GatewayProcess, model: str, **fields: Any) -> socket.socket:
    """Send a request and read nothing."""
    body = json.dumps(
        {"model": model, "prompt": "hi", "max_tokens": 10**6, "stream": True} | fields
    )
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return send(gateway, f"{head}content-length: {len(body)}\r\n\r\n{body}")


def send(gateway: GatewayProcess, request: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    client.connect(("127.0.0.1", gateway.port))
    client.sendall(request.encode())
    return client


async def readers_dropped(gateway: GatewayProcess) -> float:
    async with httpx.AsyncClient(headers={"connection": "close"}) as client:
        text = (await client.get(f"{gateway.url}/metrics")).text
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "openai_frontend_slow_clients_disconnected_total"
    ]
    return value


async def until_dropped(gateway: GatewayProcess, count: float) -> None:
    for _ in range(600):
        if await readers_dropped(gateway) >= count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await readers_dropped(gateway)} readers were dropped, not {count}")


@asynccontextmanager
async def watched(look: Callable[[], int]) -> AsyncIterator[list[int]]:
    """Yield a list to which a task appends the result of `look` every 20 ms."""
    seen = [look()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.02)
            seen.append(look())

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()


async def test_clients_that_read_nothing_of_a_large_file_cost_their_buffers(gateway):
    """Swagger UI has 1.5 MB. First in this module: no free memory hides what the readers cost."""
    path = "/docs/swagger-ui-bundle.js"
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        size = len((await client.get(path)).content)
    process = psutil.Process(gateway.pid)
    before = await readers_dropped(gateway)
    async with no_trace_left(gateway), watched(lambda: process.memory_info().rss) as memory:
        with ExitStack() as clients:
            for _ in range(READERS):
                clients.enter_context(
                    send(gateway, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
                )
            await until_dropped(gateway, before + READERS)

    assert size > 1_000_000
    assert max(memory) - memory[0] < READERS * 300 * KIB


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0}], ids=["short way", "long way"])
async def test_clients_that_read_nothing_use_only_their_buffers(gateway, fields):
    """Fifty clients with endless answers use no more than their buffers and are disconnected; their
    generations end.
    """
    process = psutil.Process(gateway.pid)
    before = await readers_dropped(gateway)
    async with (
        no_trace_left(gateway, growth_bytes=READERS * (BUFFER + BESIDE)),
        watched(lambda: process.memory_info().rss) as memory,
    ):
        with ExitStack() as clients:
            for _ in range(READERS):
                clients.enter_context(ask(gateway, "endless", **fields))
            await until_dropped(gateway, before + READERS)

    assert max(memory) - memory[0] < READERS * (BUFFER + BESIDE)


async def test_a_client_is_disconnected_after_the_send_timeout(gateway):
    """Even if its answer fits the buffer and the model finished long before."""
    before = await readers_dropped(gateway)
    async with no_trace_left(gateway):
        began_s = time.monotonic()
        with ask(gateway, "burst"):
            await until_dropped(gateway, before + 1)
        assert time.monotonic() - began_s > SEND_TIMEOUT_S
    assert await readers_dropped(gateway) == before + 1


async def test_clients_that_read_are_served_beside_slow_readers(gateway):
    with ExitStack() as clients:
        before = await readers_dropped(gateway)
        for _ in range(5):
            clients.enter_context(ask(gateway, "endless"))
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            while await readers_dropped(gateway) < before + 5:
                body = {"model": "talks", "prompt": "hi", "stream": True}
                response = await client.post("/v1/completions", json=body)
                assert response.text.endswith("data: [DONE]\n\n")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def answered(client: socket.socket) -> bool:
    """Whether the server answers a request on this connection."""
    answer = b""
    try:
        client.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while not answer.endswith(b"}") and (received := client.recv(4096)):
            answer += received
    except ConnectionError:
        return False
    return answer.startswith(b"HTTP/1.1 200")


async def until_descriptors(process: psutil.Process, most: int) -> None:
    for _ in range(400):
        if process.num_fds() <= most:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{process.num_fds()} descriptors are open, not {most}")


async def test_connections_without_a_descriptor_are_closed(gateway):
    """Open connections continue, the process does not spin, and once descriptors are free again,
    new connections are accepted.
    """
    process = psutil.Process(gateway.pid)
    soft, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    async with no_trace_left(gateway):
        with ExitStack() as clients, connect(gateway.port) as first:
            assert answered(first)
            limit = process.num_fds() + 10
            resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (limit, hard))
            try:
                many = [clients.enter_context(connect(gateway.port)) for _ in range(40)]
                taken = [client for client in many if answered(client)]
                cpu = process.cpu_times()
                await asyncio.sleep(1)
                spent = process.cpu_times()
                assert answered(first)
                assert 0 < len(taken) < len(many)
                for client in many:
                    client.close()
                await until_descriptors(process, limit - 10)
                with connect(gateway.port) as later:
                    assert answered(later)
            finally:
                resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (soft, hard))

    assert spent.user + spent.system - cpu.user - cpu.system < 0.5


def test_log_names_the_requests_of_slow_clients(gateway):
    line = gateway.wait_for_line("disconnected a client that reads too slowly")

    assert re.search(r"request req_\w+: disconnected", line)
