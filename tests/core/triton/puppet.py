"""A model whose requests the test answers: the test is both engine and client."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from openai_frontend.model_facts import ModelFacts
from openai_frontend.triton import ResponseStream, Server, _core, error_codes
from tests.core.triton.generation_inputs import text

BEFORE, AFTER = b'data: {"text":', b"}\n\n"


class Puppet:
    """The host of a model whose requests the test answers."""

    facts = ModelFacts(max_model_len=None)
    arrived: asyncio.Queue[_core.Execution]
    cancelled: int

    def start(self, execution: _core.Execution) -> None:
        Puppet.arrived.put_nowait(execution)

    def cancel(self, execution: _core.Execution) -> None:
        Puppet.cancelled += 1
        execution.fail(error_codes.CANCELLED, "the request was cancelled")

    def unload(self) -> None:
        """Does nothing: there is nothing to release."""

    def failure(self) -> str | None:
        """Returns None: it never fails."""

    def stats(self) -> None:
        """Returns no statistics."""


def load(
    name: str, version: int, folder: Path, config: dict[str, Any], loop: asyncio.AbstractEventLoop
) -> tuple[Puppet, dict[str, Any]]:
    """The in-process backend calls it instead of the engines' runtime."""
    return Puppet(), config


CONFIG = {
    "backend": "inprocess",
    "model_transaction_policy": {"decoupled": True},
    "input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [
        {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "other", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "number", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "num_cached_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
        {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "token_ids", "data_type": "TYPE_INT32", "dims": [-1]},
        {"name": "logprob_tokens", "data_type": "TYPE_INT32", "dims": [-1, -1]},
        {"name": "logprob_values", "data_type": "TYPE_FP64", "dims": [-1, -1]},
    ],
}


class Request:
    """Both ends of one request: the engine's responses, and what the client gets, in order."""

    def __init__(self, stream: ResponseStream, execution: _core.Execution, core: Any) -> None:
        self.stream = stream
        self.execution = execution
        self._core = core
        self.frames: list[bytes] = []
        self.hold = False

    def relay(self, write: Callable[[bytes], bool] | None = None) -> Callable[[], None]:
        return self.stream.relay("text_output", BEFORE, AFTER, write or self.write)

    def relay_numbered(self, around: tuple[bytes, bytes], numbers: Any) -> Callable[[], None]:
        return self.stream.relay("text_output", *around, self.write, numbers)

    def write(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return self.hold

    @property
    def texts(self) -> list[str]:
        """The text of each write."""
        return [unframed(written) for written in self.frames]

    def send(self, *sent: str | bytes) -> None:
        for each in sent:
            self.execution.send_bytes("text_output", each)

    def turn(self) -> None:
        """What the loop does after responses arrived: writes frames, wakes waiters."""
        self._core.drain()

    def taken(self) -> list[bytes]:
        """The texts that wait for the iterator."""
        return [response.item("text_output") for response in self.stream._native.take()]


def frame_texts(written: bytes) -> list[str]:
    """The text of each frame of one write; JSON has no newline, so AFTER ends each."""
    *frames, end = written.split(AFTER)
    assert frames
    assert not end
    assert all(frame.startswith(BEFORE) for frame in frames)
    return [orjson.loads(frame.removeprefix(BEFORE)) for frame in frames]


def unframed(written: bytes) -> str:
    """The text of all frames of one write."""
    return "".join(frame_texts(written))


@contextlib.asynccontextmanager
async def model(server: Server) -> AsyncGenerator[Callable[[], Awaitable[Request]], None]:
    """Returns a function that sends requests to the model `puppet`; requests still open at the
    end are ended.

    The server's in-process backend must use this module as its runtime.
    """
    Puppet.arrived, Puppet.cancelled = asyncio.Queue(), 0
    await server.load_model("puppet", config=json.dumps(CONFIG), model_files={"1/none": b""})
    executions: list[_core.Execution] = []
    core = server._core
    assert core is not None

    async def asked() -> Request:
        stream = server.infer("puppet", {"text_input": text("go")})
        async with asyncio.timeout(30):
            executions.append(await Puppet.arrived.get())
        return Request(stream, executions[-1], core)

    yield asked
    while executions:  # pytest still refers to what was yielded, and so to this list
        executions.pop().finish()
    core.drain()
    del Puppet.arrived
