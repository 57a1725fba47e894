"""Puts requests on the engine's socket at once, where vLLM's client makes futures and tasks for it.

As the step loop, it runs with tested versions only.
"""

from typing import Any


class InputWriter:
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
