"""Takes the engine's steps from its socket in the callback that says that there are some.

vLLM's client awaits each step through zmq's futures, a task and a queue: three turns of the event
loop and 60 us of CPU for each step, whatever it brought. Here the callback reads, decodes and hands
over. As the step loop, it runs with tested versions only.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class RequestSender:
    """Sends what one engine client sends, in the order of the calls."""

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
        """False where the socket takes nothing now, or something else waits to be sent: then the
        client's own way is next. Raises EngineDeadError.
        """
        client = self._client
        client.ensure_alive()
        if self._socket._send_futures:
            return False
        request.client_index = client.client_index
        frames = (client.core_engine, self._kind, *client.encoder.encode(request))
        try:
            self._send(frames, self._at_once)
        except self._full:
            return False
        return True


class OutputReader:
    """All that one engine client receives, in place of the client's own task."""

    def __init__(self, client: Any, on_step: Callable[[Any], None]) -> None:
        self._client = client
        self._on_step = on_step
        self._socket = client.resources.output_socket
        self._ended: asyncio.Future[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task that lasts as long as the engine, from which vLLM's own one does not start.

        It raises EngineDeadError where the engine says that it dies, and is cancelled where its
        process has gone.
        """
        task = asyncio.get_running_loop().create_task(self._run())
        self._client.resources.output_queue_task = task
        return task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        # zmq registers the socket with the loop, and takes it out again when it is closed; only the
        # callback is ours.
        self._socket._get_loop()
        loop.add_reader(self._socket.FD, self._read)
        try:
            self._read()  # the descriptor tells of changes alone, not of what is there already
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
        except Exception as error:  # noqa: BLE001  whoever awaits the task tells of it
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
    """None where the client does more with what it receives: data parallel or elastic engines,
    fault tolerance; or where its own task runs already.
    """
    from vllm.v1.engine.core_client import AsyncMPClient

    parallel = client.vllm_config.parallel_config
    simple = type(client) is AsyncMPClient and not (
        parallel.enable_fault_tolerance or parallel.enable_elastic_ep
    )
    if not simple or client.resources.output_queue_task is not None:
        return None
    return OutputReader(client, on_step)
