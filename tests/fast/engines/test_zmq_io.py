"""The sockets of the step loop, with the installed pyzmq and uvloop, and without vLLM."""

import asyncio
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import uvloop
import zmq.asyncio

from openai_frontend.engines.vllm import zmq_io
from openai_frontend.runtime import compatibility
from tests.medium.test_compatibility import without

ENGINE = b"\0\0"


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module imports of it."""
    names = ("vllm", "vllm.v1", "vllm.v1.engine", "vllm.v1.engine.core_client")
    modules = {name: ModuleType(name) for name in names}
    modules["vllm.v1.engine"].__dict__["EngineCoreRequestType"] = SimpleNamespace(
        ADD=SimpleNamespace(value=b"\0")
    )
    modules["vllm.v1.engine.core_client"].__dict__["_process_utility_output"] = print
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_requests_and_steps_pass(new_loop):
    """Steps that were sent before the reader started, and after."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        sent, seen = runner.run(_exchange())

    assert sent == [b"\0", b"request"]
    assert seen == [b"1", b"2", b"3"]


_DECODER: Any = SimpleNamespace(
    decode=lambda frames: SimpleNamespace(utility_output=None, data=frames[0].bytes)
)


async def _exchange() -> tuple[list[bytes], list[bytes]]:
    context = zmq.asyncio.Context()
    requests, engine, outputs, steps = (
        context.socket(kind) for kind in (zmq.ROUTER, zmq.DEALER, zmq.PULL, zmq.PUSH)
    )
    seen: list[bytes] = []
    try:
        engine.setsockopt(zmq.IDENTITY, ENGINE)
        engine.connect(f"tcp://127.0.0.1:{requests.bind_to_random_port('tcp://127.0.0.1')}")
        steps.connect(f"tcp://127.0.0.1:{outputs.bind_to_random_port('tcp://127.0.0.1')}")
        await engine.send(b"hello")
        await requests.recv_multipart()  # before it, the engine is not known
        client = _client(requests, outputs)
        await steps.send(b"1")
        reader = zmq_io.OutputReader(client, lambda step: seen.append(step.data), _DECODER).start()
        await _until(lambda: seen == [b"1"])
        await steps.send(b"2")
        await steps.send(b"3")
        await _until(lambda: len(seen) == 3)
        assert zmq_io.RequestSender(client).add(SimpleNamespace(client_index=0))
        async with asyncio.timeout(30):
            sent = await engine.recv_multipart()
        reader.cancel()
        await asyncio.wait([reader])
    finally:
        for socket in (requests, engine, outputs, steps):
            socket.close(linger=0)
        context.term()
    return sent, seen


def _client(requests: Any, outputs: Any) -> Any:
    """vLLM's client, which encodes each request as its name."""
    return SimpleNamespace(
        input_socket=requests,
        resources=SimpleNamespace(output_socket=outputs, validate_alive=lambda frames: None),
        encoder=SimpleNamespace(encode=lambda request: [b"request"]),
        ensure_alive=lambda: None,
        core_engine=ENGINE,
        client_index=0,
    )


async def _until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110  the socket has no event for it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", compatibility.SOCKET.names)
def test_sockets_are_left_to_vllm_if_pyzmq_lacks_a_name(monkeypatch, caplog, name):
    without(monkeypatch, compatibility.SOCKET, name)

    assert not zmq_io.is_supported.__wrapped__()
    (line,) = caplog.messages
    assert f"zmq.asyncio.Socket has no {name}, so requests and steps pass through" in line
