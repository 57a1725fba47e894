"""Clients that disconnect abruptly or half-close, a full disk, and names that do not resolve."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openai_frontend.auth.api_keys import digest_of
from openai_frontend.auth.jwks_watcher import JWKSWatcher
from openai_frontend.auth.jwt_verifier import JWTVerifier
from tests import mock_models
from tests.fast.auth import tokens
from tests.gateway_process import GatewayProcess
from tests.resilience.faults.asking import slow_gateway
from tests.resilience.faults.invariants import no_trace_left
from tests.resilience.faults.raw_stream import RawStream

CLIENTS = 500
LONG = 3000  # tokens, at 20 per second
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with slow_gateway(tmp_path) as process:
        yield process


async def streams(gateway: GatewayProcess, count: int) -> list[RawStream]:
    """Start `count` streams and wait for the first token of each."""
    return await asyncio.gather(
        *[RawStream.begun(gateway.port, "slow", LONG) for _ in range(count)]
    )


def reset(stream: RawStream) -> None:
    """Close with RST, as if the client's machine failed."""
    connection: socket.socket = stream._writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream._writer.transport.abort()


def answers(gateway: GatewayProcess) -> bool:
    body = {"model": "slow", "prompt": "a", "max_tokens": 2}
    return httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=120).status_code == 200


@pytest.mark.slow
async def test_500_clients_that_reset_mid_stream_leave_nothing(gateway: GatewayProcess) -> None:
    """Their generations end within seconds, and other clients are served."""
    async with asyncio.timeout(600):
        async with no_trace_left(gateway, deadline_s=30):
            running = await streams(gateway, CLIENTS)
            for stream in running:
                reset(stream)
            assert await asyncio.to_thread(answers, gateway)


@pytest.mark.slow
async def test_half_closed_clients_leave_nothing(gateway: GatewayProcess) -> None:
    """The server may finish or drop the stream of a client that half-closes its connection."""
    async with asyncio.timeout(300):
        async with no_trace_left(gateway, deadline_s=30):
            running = await streams(gateway, 50)
            for stream in running:
                stream._writer.write_eof()
            assert await asyncio.to_thread(answers, gateway)
            for stream in running:
                reset(stream)


async def test_known_tokens_are_accepted_while_dns_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the identity provider's name does not resolve, the gateway still verifies tokens with the
    signing keys it has, and the event loop does not block.
    """
    released, asked = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        asked.set()
        released.wait(120)
        raise socket.gaierror("it was a test")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    verifier = JWTVerifier(issuer=tokens.ISSUER, audience=tokens.AUDIENCE)
    verifier.set_keys(tokens.jwks())
    looking = asyncio.create_task(JWKSWatcher("https://idp.test/jwks", verifier).refresh())
    assert await asyncio.to_thread(asked.wait, 60)

    async with asyncio.timeout(60):  # a loop that is blocked gets the answer of `hang`
        for number in range(50):
            token = tokens.token(sub=f"caller-{number}")
            assert verifier.verify(token, digest_of(token)).key.name == f"jwt:caller-{number}"
            await asyncio.sleep(0.001)
        assert not looking.done()
        released.set()
        await looking


@pytest.mark.slow
def test_the_gateway_serves_when_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    mock_models.write_with_tokenizer(tmp_path / "models", "slow", tokens_per_second=20)
    with GatewayProcess(tmp_path / "models", tmp_path / "log") as process:
        process.wait_until_ready()
    (tmp_path / "full").symlink_to("/dev/full")

    with GatewayProcess(tmp_path / "models", tmp_path / "full") as process:
        process.wait_until_ready()
        assert all(answers(process) for _ in range(5))
        bad = httpx.post(f"{process.url}/v1/completions", content=b"{", timeout=120)
        assert bad.status_code in (400, 415)
        assert process.stop() == 0
