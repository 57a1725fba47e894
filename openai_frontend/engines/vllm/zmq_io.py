"""Reads and writes the sockets of vLLM's engine client directly, for the step loop.

vLLM's client creates futures and tasks to send a request. It awaits each step through zmq's
futures, a task and a queue: three iterations of the event loop and 60 us of CPU per step, whatever
its size. Here, the callback for readable data reads, decodes and hands over.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from openai_frontend import compatibility
from openai_frontend.engines.vllm import capabilities, versions

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
        self._send = client.input_socket._shadow_sock.send_multipart
        self._kind = EngineCoreRequestType.ADD.value
        self._at_once = zmq.NOBLOCK
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
        try:
            self._send(frames, self._at_once, copy)
        except self._full:
            return False
        return True


class OutputReader:
    """Receives for one engine client, instead of the client's own task."""

    def __init__(self, client: Any, on_step: Callable[[Any], None]) -> None:
        self._client = client
        self._on_step = on_step
        self._socket = client.resources.output_socket
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
        loop.add_reader(self._socket.FD, self._read)
        try:
            self._read()  # the descriptor signals only changes, not data that is already there
            await self._ended
        finally:
            if not self._socket.closed:
                loop.remove_reader(self._socket.FD)

    def _read(self) -> None:
        import zmq

        ended = self._ended
        if ended is None or ended.done() or self._socket.closed:
            return
        receive = self._socket._shadow_sock.recv_multipart
        try:
            while True:
                self._take(receive(zmq.NOBLOCK, copy=False))
        except zmq.Again:
            return
        except Exception as error:  # noqa: BLE001  raised to the task's awaiter
            ended.set_exception(error)

    def _take(self, frames: Any) -> None:
        from vllm.v1.engine.core_client import _process_utility_output

        self._client.resources.validate_alive(frames)
        outputs = self._client.decoder.decode(frames)
        if outputs.utility_output:
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
        parallel.enable_fault_tolerance or parallel.enable_elastic_ep
    )
    if not simple or client.resources.output_queue_task is not None:
        return None
    return OutputReader(client, on_step)
