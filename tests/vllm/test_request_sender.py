"""Sending requests to an engine over a real socket; the test is the engine."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from openai_frontend.engines.vllm.zmq_io import RequestSender

pytestmark = pytest.mark.engine

ENGINE = b"\0\0"


class Client:
    """The parts of vLLM's client that a sender uses, and the engine's end of its socket."""

    def __init__(self) -> None:
        import zmq.asyncio
        from vllm.v1.serial_utils import MsgpackEncoder

        self.context = zmq.asyncio.Context()
        self.input_socket = self.context.socket(zmq.ROUTER)
        self.input_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.input_socket.sndhwm = 10
        port = self.input_socket.bind_to_random_port("tcp://127.0.0.1")
        self.engine = self.context.socket(zmq.DEALER)
        self.engine.setsockopt(zmq.IDENTITY, ENGINE)
        self.engine.rcvhwm = 10
        self.engine.connect(f"tcp://127.0.0.1:{port}")
        self.encoder = MsgpackEncoder()
        self.core_engine = ENGINE
        self.client_index = 3
        self.dead = False

    def ensure_alive(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.dead:
            raise EngineDeadError

    async def ready(self) -> None:
        """Send the engine's greeting, as vLLM's does: before it, a ROUTER socket does not know the
        engine.
        """
        await self.engine.send(b"hello")
        await self.input_socket.recv_multipart()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    made = Client()
    await made.ready()
    yield made
    for socket in (made.engine, made.input_socket):
        socket.close(linger=0)
    made.context.term()


def request(text: str) -> Any:
    """Return a request for the encoder; the sender sets the client's index."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    return EngineCoreRequest(
        request_id=text,
        prompt_token_ids=[1, 2],
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=3),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


async def test_full_socket_falls_back_to_the_client(client):
    """The client sends the requests that would have to wait."""
    writer = RequestSender(client)

    added = [writer.add(request("x" * 1_000_000)) for _ in range(100)]

    assert added[0]
    assert not added[-1]


async def test_requests_stay_behind_those_of_the_client(client):
    """No request overtakes one that the client has not sent yet."""
    writer = RequestSender(client)
    client.input_socket._send_futures.append(SimpleNamespace())

    assert not writer.add(request("a"))
    client.input_socket._send_futures.clear()
    assert writer.add(request("b"))


async def test_dead_engine_refuses_requests(client):
    from vllm.v1.engine.exceptions import EngineDeadError

    client.dead = True
    with pytest.raises(EngineDeadError):
        RequestSender(client).add(request("a"))
