"""Reading an engine's output from a real socket; the test is the engine."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio

from openai_frontend.engines.vllm import zmq_io
from tests.vllm.conftest import needs_step_loop

pytestmark = pytest.mark.engine


class EngineEnd:
    """The engine's end of the socket, and the client at the other end."""

    def __init__(self) -> None:
        import zmq.asyncio
        from vllm.v1.engine.core_client import BackgroundResources
        from vllm.v1.serial_utils import MsgpackEncoder

        self.context = zmq.asyncio.Context()
        pulls = self.context.socket(zmq.PULL)
        port = pulls.bind_to_random_port("tcp://127.0.0.1")
        self._pushes = zmq.Socket(self.context, zmq.PUSH, copy_threshold=0)
        self._pushes.connect(f"tcp://127.0.0.1:{port}")
        self._encoder = MsgpackEncoder()
        self.resources = BackgroundResources(ctx=None)
        self.resources.output_socket = pulls
        self.client: Any = SimpleNamespace(
            resources=self.resources,
            utility_results={},
        )

    def send(self, *outputs: Any) -> None:
        for each in outputs:
            self._pushes.send_multipart(self._encoder.encode(each))

    def dies(self) -> None:
        from vllm.v1.engine.core import EngineCoreProc

        self._pushes.send(EngineCoreProc.ENGINE_CORE_DEAD)

    def close(self) -> None:
        self._pushes.close(linger=0)
        self.resources.output_socket.close(linger=0)
        self.context.term()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[EngineEnd]:
    end = EngineEnd()
    yield end
    task = end.resources.output_queue_task
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
    end.close()


def step(number: int) -> Any:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    return EngineCoreOutputs(outputs=[EngineCoreOutput(f"r{number}", [number])])


async def test_dead_engine_is_reported(engine):
    """The engine's last message says so; all earlier output has been delivered."""
    from vllm.v1.engine.exceptions import EngineDeadError

    seen: list[Any] = []
    task = zmq_io.OutputReader(engine.client, seen.append, zmq_io.StepDecoder()).start()
    engine.send(step(1))
    engine.dies()

    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(task, 60)
    assert len(seen) == 1
    assert engine.resources.engine_dead


async def test_failing_output_handler_stops_the_reader(engine):
    """The error reaches the code that awaits the task, and no further step is read."""
    seen: list[Any] = []

    def fail(step: Any) -> None:
        seen.append(step)
        raise ValueError("no such request")

    task = zmq_io.OutputReader(engine.client, fail, zmq_io.StepDecoder()).start()
    engine.send(step(1), step(2))

    with pytest.raises(ValueError, match="no such request"):
        await asyncio.wait_for(task, 60)
    assert len(seen) == 1


@needs_step_loop
def test_other_client_types_keep_their_own_task():
    """A client that processes its messages in another way is left unchanged."""
    from vllm.v1.engine.core_client import AsyncMPClient, DPAsyncMPClient

    def client(kind: type, *, task: Any = None, **parallel: bool) -> Any:
        made: Any = object.__new__(kind)
        flags = {"enable_fault_tolerance": False, "enable_elastic_ep": False, **parallel}
        made.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(**flags))
        made.resources = SimpleNamespace(output_queue_task=task, output_socket=None)
        return made

    assert zmq_io.output_reader(client(AsyncMPClient), print) is not None
    for other in (
        client(DPAsyncMPClient),
        client(AsyncMPClient, enable_fault_tolerance=True),
        client(AsyncMPClient, enable_elastic_ep=True),
        client(AsyncMPClient, task=object()),
    ):
        assert zmq_io.output_reader(other, print) is None


def tokens_of(logprobs: Any) -> list[list[Any]]:
    return [array.tolist() for array in logprobs[:3]]


@needs_step_loop
@pytest.mark.parametrize("columns", [1, 4, 200])
async def test_step_decoder_restores_log_probabilities(columns):
    """What vLLM's own decoder makes, also of arrays that are frames of their own."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    ids = np.arange(columns, dtype=np.int32).reshape(1, -1)
    logprobs = LogprobsLists(ids, ids.astype(np.float32) / 8, np.array([2]))
    outputs = [EngineCoreOutput("a", [7], new_logprobs=logprobs), EngineCoreOutput("b", [8])]
    frames = MsgpackEncoder().encode(EngineCoreOutputs(outputs=outputs, timestamp=5.0))
    assert (len(frames) > 1) == (columns == 200)
    decoder = zmq_io.StepDecoder()

    step, vllms = decoder.decode(frames), MsgpackDecoder(EngineCoreOutputs).decode(frames)

    with_logprobs, without = step.outputs
    assert isinstance(with_logprobs.new_logprobs, list)
    restored = decoder.logprobs(with_logprobs.new_logprobs)
    assert tokens_of(restored) == tokens_of(vllms.outputs[0].new_logprobs) == tokens_of(logprobs)
    with_logprobs.new_logprobs = vllms.outputs[0].new_logprobs = None
    assert [msgspec.to_builtins(each) for each in (step, with_logprobs, without)] == [
        msgspec.to_builtins(each) for each in (vllms, *vllms.outputs)
    ]
