"""Reads and writes the sockets of vLLM's engine client directly, for the step loop.

vLLM's client creates futures and tasks to send a request. It awaits each step through zmq's
futures, a task and a queue: three iterations of the event loop and 60 us of CPU per step, whatever
its size. Here, the callback for readable data reads, decodes and hands over.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from openai_frontend.engines.vllm import capabilities, versions
from openai_frontend.errors import caught
from openai_frontend.runtime import compatibility
from openai_frontend.triton import _core

_FRAMES_OF_TEXT = 3  # engine, kind and request


@functools.cache
def is_supported() -> bool:
    """Whether the installed pyzmq has what this module uses; logs a warning if not."""
    slower = "requests and steps pass through vLLM's own tasks, which need more CPU"
    return compatibility.check(compatibility.SOCKET, otherwise=slower)


class RequestSender:
    """Sends the requests of one engine client, in the order of the calls."""

    def __init__(self, client: Any) -> None:
        import zmq
        from vllm.v1.engine import EngineCoreRequestType

        self._client = client
        self._socket = client.input_socket
        self._send = client.input_socket._shadow_sock.send
        self._kind = EngineCoreRequestType.ADD.value
        # Numbers, because each operation on zmq's enumerations takes several calls.
        self._at_once, self._more = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
        self._full = zmq.Again

    def add(self, request: Any) -> bool:
        """Send a request; False if the socket is full or other messages wait. The caller then uses
        the client's own method.

        Raises EngineDeadError.
        """
        client = self._client
        client.ensure_alive()
        if self._socket._send_futures:
            return False
        request.client_index = client.client_index
        frames = (client.core_engine, self._kind, *client.encoder.encode(request))
        # Images are frames of their own. zmq keeps references to large ones instead of copies.
        copy = len(frames) == _FRAMES_OF_TEXT
        *before, last = frames
        try:
            for frame in before:  # only the first, which names the engine, can find it full
                self._send(frame, self._more, copy)
            self._send(last, self._at_once, copy)
        except self._full:
            return False
        return True


class StepDecoder:
    """Decodes the engine's messages as vLLM's decoder does, except for log probabilities of tokens.

    Those stay as the engine has sent them, for `_core.advance_all`: vLLM makes three numpy arrays
    for each token, which takes 4 us or more. `logprobs` makes what vLLM would have made.
    """

    def __init__(self) -> None:
        from vllm.v1.serial_utils import MsgpackDecoder

        self._decoder = MsgpackDecoder(_step_type())
        self._frames: Any = ()

    def decode(self, frames: Any) -> Any:
        """vLLM's EngineCoreOutputs."""
        self._frames = frames
        return self._decoder.decode(frames)

    def logprobs(self, sent: Any) -> Any:
        """vLLM's LogprobsLists, of an output of the last message."""
        import msgspec
        from vllm.v1.outputs import LogprobsLists

        self._decoder.aux_buffers = self._frames
        try:
            return msgspec.convert(sent, LogprobsLists, dec_hook=self._decoder.dec_hook)
        finally:
            self._decoder.aux_buffers = ()


@functools.cache
def _step_type() -> type:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    # vLLM's own types but for one field's type, which keeps its place in the message.
    output = _with_field(EngineCoreOutput, "new_logprobs", Any, default=None)
    return _with_field(EngineCoreOutputs, "outputs", list[output], default_factory=list)  # type: ignore[valid-type]


def _with_field(base: Any, name: str, kind: Any, **default: Any) -> type:
    import msgspec

    config = base.__struct_config__
    return msgspec.defstruct(
        base.__name__,
        [(name, kind, msgspec.field(**default))],
        bases=(base,),
        array_like=config.array_like,
        omit_defaults=config.omit_defaults,
        gc=config.gc,
    )


class OutputReader:
    """Receives for one engine client, instead of the client's own task."""

    def __init__(self, client: Any, on_step: Callable[[Any], None], decoder: StepDecoder) -> None:
        import zmq

        self._client = client
        self._on_step = on_step
        self.decoder = decoder
        self._socket = client.resources.output_socket
        # Numbers, because an operation on zmq's enumerations takes longer than asking the socket.
        self._events, self._readable = int(zmq.EVENTS), int(zmq.POLLIN)
        self._at_once = int(zmq.NOBLOCK)
        self._ended: asyncio.Future[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Return a task that runs as long as the engine and keeps vLLM's own from starting.

        It raises EngineDeadError if the engine reports that it is dying, and is cancelled if its
        process is gone.
        """
        task = asyncio.get_running_loop().create_task(self._run())
        self._client.resources.output_queue_task = task
        return task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        # zmq registers the socket with the loop and removes it when it is closed; only the callback
        # is ours.
        self._socket._get_loop()
        loop.add_reader(self._socket.FD, _core.run_step, self._read)
        try:
            self._read()  # the descriptor signals only changes, not data that is already there
            await self._ended
        finally:
            if not self._socket.closed:
                loop.remove_reader(self._socket.FD)

    def _read(self) -> None:
        ended = self._ended
        if ended is None or ended.done() or self._socket.closed:
            return
        socket = self._socket._shadow_sock
        with caught(ended.set_exception):  # raised to the task's awaiter
            # Asking is cheaper than the exception of a socket that has nothing left.
            while socket.get(self._events) & self._readable:
                frames = [socket.recv(self._at_once, copy=False)]
                while frames[-1].more:
                    frames.append(socket.recv(self._at_once, copy=False))
                self._take(frames)

    def _take(self, frames: Any) -> None:
        self._client.resources.validate_alive(frames)
        outputs = self.decoder.decode(frames)
        if outputs.utility_output:
            from vllm.v1.engine.core_client import _process_utility_output

            _process_utility_output(outputs.utility_output, self._client.utility_results)
        else:
            self._on_step(outputs)


def output_reader(client: Any, on_step: Callable[[Any], None]) -> OutputReader | None:
    """None if this vLLM's client is different, if it does more with its messages (data-parallel or
    elastic engines, fault tolerance), or if its own task already runs.
    """
    from vllm.v1.engine.core_client import AsyncMPClient

    if not versions.installed().has(capabilities.DIRECT_SOCKETS):
        return None
    parallel = client.vllm_config.parallel_config
    simple = type(client) is AsyncMPClient and not (
        versions.tolerates_faults(parallel) or parallel.enable_elastic_ep
    )
    if not simple or client.resources.output_queue_task is not None:
        return None
    return OutputReader(client, on_step, StepDecoder())
