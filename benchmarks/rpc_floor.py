"""The least that grpcio's asyncio server can do for streamed tokens: prepared messages, one to each
stream a turn, as the paced model of the mock engine makes them.

`python -m benchmarks.rpc_floor PORT READY_PORT MESSAGES MESSAGE_BYTES` answers every method on PORT
and HTTP's readiness on READY_PORT.
"""

import asyncio
import signal
import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

_TURN_S = 0.01


class Turns:
    """All streams that run, stepped together: a handler of gRPC."""

    def __init__(self, messages: int, message: bytes) -> None:
        self._messages = messages
        self._message = message
        self._turn = asyncio.Event()

    def service(self, _details: Any) -> Any:
        """The handler of any method."""
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, _requests: Any, call: Any) -> None:
        for _ in range(self._messages):
            await self._turn.wait()
            await call.write(self._message)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s += _TURN_S
            await asyncio.sleep(next_s - loop.time())
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()


async def main(port: int, ready_port: int, messages: int, message: bytes) -> None:
    """Until SIGTERM."""
    turns = Turns(messages, message)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([turns])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()

    async def ready(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    await asyncio.start_server(ready, "127.0.0.1", ready_port)
    running = asyncio.create_task(turns.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.wait([running])
    await server.stop(0)


if __name__ == "__main__":
    port, ready_port, messages, size = (int(each) for each in sys.argv[1:])
    uvloop.run(main(port, ready_port, messages, bytes(size)))
