"""Prints how requests end if allocations of the core's callbacks fail, one after the other.

It runs in its own process with failing_allocations.cc loaded.
"""

import asyncio
import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from openai_frontend.triton import Options, ResponseStream, Server, _core, inprocess
from tests.core.triton import puppet
from tests.core.triton.generation_inputs import text

TEXT = "a text that is longer than what a string of C++ holds in itself"
MOST = 100  # allocations of one callback


async def received(stream: ResponseStream) -> str:
    """The texts of a stream, or its error."""
    try:
        texts = [each.item("text_output") async for burst in stream for each in burst]
    except Exception as error:  # noqa: BLE001  it is the outcome
        return str(error)
    return b"".join(each for each in texts if each is not None).decode()


async def response(server: Server, allocations: ctypes.CDLL, number: int) -> tuple[bool, str]:
    """A response with more than text, delivered on the sending thread."""
    stream = server.infer("puppet", {"text_input": text("go")})
    execution = await puppet.Puppet.arrived.get()
    _, shape, data = text(TEXT)
    outputs = [(name, "BYTES", shape, data) for name in ("text_output", "other")]
    allocations.arm(number, 1)
    with suppress(MemoryError):
        execution.send(outputs)
    return bool(allocations.disarm()), await ended(execution, stream)


async def relayed(server: Server, allocations: ctypes.CDLL, number: int) -> tuple[bool, str]:
    """Text that goes to the client without Python."""
    stream = server.infer("puppet", {"text_input": text("go")})
    execution = await puppet.Puppet.arrived.get()
    frames: list[bytes] = []

    def write(frame: bytes) -> bool:
        frames.append(frame)
        return False

    stream.relay("text_output", puppet.BEFORE, puppet.AFTER, write)
    allocations.arm(number, 1)
    with suppress(MemoryError):
        execution.send_bytes("text_output", TEXT)
    failed = bool(allocations.disarm())
    outcome = await ended(execution, stream)
    return failed, "".join(map(puppet.unframed, frames)) + outcome


async def ended(execution: _core.Execution, stream: ResponseStream) -> str:
    execution.finish()
    return await received(stream)


async def drained(server: Server, allocations: ctypes.CDLL, number: int) -> tuple[bool, str]:
    """Text of two streams that wait, written by one wake-up."""
    core = server._core
    assert core is not None
    texts: list[list[bytes]] = [[], []]
    executions, waiting = [], []
    for frames in texts:
        stream = server.infer("puppet", {"text_input": text("go")})
        executions.append(await puppet.Puppet.arrived.get())
        stream.relay("text_output", puppet.BEFORE, puppet.AFTER, frames.append)  # type: ignore[arg-type]
        waiting.append(asyncio.ensure_future(received(stream)))
    await asyncio.sleep(0)
    for execution in executions:
        execution.send_bytes("text_output", TEXT)
    allocations.arm(number, 1)
    with suppress(MemoryError):
        core.drain()
    failed = bool(allocations.disarm())
    for execution in executions:
        execution.finish()
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    return failed, " ".join("".join(map(puppet.unframed, frames)) or "none" for frames in texts)


async def arrival(server: Server, allocations: ctypes.CDLL, number: int) -> tuple[bool, str]:
    """A request on its way to the backend, on a thread of Triton's."""
    allocations.arm(number, 0)
    stream = server.infer("puppet", {"text_input": text("go")})
    outcome = asyncio.ensure_future(received(stream))
    arrived = asyncio.ensure_future(puppet.Puppet.arrived.get())
    await asyncio.wait([outcome, arrived], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    failed = bool(allocations.disarm())
    if arrived.done():
        arrived.result().finish()
    arrived.cancel()
    return failed, await asyncio.wait_for(outcome, 60)


async def asked(server: Server, allocations: ctypes.CDLL, number: int) -> tuple[bool, str]:
    """A request with copied and borrowed inputs; reports one still borrowed after a rejection."""
    inputs = [bytearray(b"\x00" * size) for size in (8, 100_000)]
    tensors = {name: ("UINT8", (len(data),), data) for name, data in zip("ab", inputs, strict=True)}
    core = server._core
    assert core is not None
    allocations.arm(number, 1)
    try:
        core.infer("puppet", -1, tensors, "", 0, 0, None, None, [])
    except MemoryError:
        end = "MemoryError"
    except _core.TritonError as error:
        end = str(error)
    failed = bool(allocations.disarm())
    for data in inputs:
        data.append(0)  # BufferError while it is borrowed
    return failed, end


async def outcomes(ask: Callable[[int], Awaitable[tuple[bool, str]]]) -> list[str]:
    """How requests end if another allocation fails each time, until none fails."""
    ends = []
    for number in range(1, MOST):
        failed, end = await ask(number)
        ends.append(end)
        if not failed:
            return ends
    raise AssertionError("more allocations than a callback has")


async def main(library: str) -> None:
    allocations = ctypes.CDLL(library)
    inprocess.RUNTIME = puppet.__name__
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Options(model_repositories=[Path(folder)], model_control_mode="explicit"))
        await server.start()
        async with puppet.model(server):
            for ask in (response, relayed, drained, arrival, asked):
                told[ask.__name__] = await outcomes(partial(ask, server, allocations))
        await server.stop()
    gc.collect()
    sys.stdout.write(json.dumps({"ends": told, "live": _core.live_counts()}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
