"""A proxy that stops in the middle of an answer, until it is released."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 64 * 1024


class SlowConnection:
    """Forwards connections to a port, and the first `limit` bytes of each answer."""

    def __init__(self, port: int, limit: int) -> None:
        self._target = port
        self._limit = limit
        self._released = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests = b""  # all bytes that clients have sent

    def release(self) -> None:
        self._released.set()

    def serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for work in (self._send, self._answer):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()

    def close(self) -> None:
        self._released.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _send(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(_PIECE):
                self.requests += piece
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        with suppress(OSError), client, server:
            while piece := server.recv(_PIECE):
                if sent + len(piece) > self._limit:
                    self._released.wait()
                client.sendall(piece)
                sent += len(piece)


@contextmanager
def slow_connection(port: int, limit: int) -> Iterator[SlowConnection]:
    made = SlowConnection(port, limit)
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join()
