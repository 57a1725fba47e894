"""The core and the mock engine without HTTP, in a process of its own: what is below the gateway."""

import asyncio
import struct
import sys
import time
from pathlib import Path

import uvloop

from benchmarks import process_stat
from benchmarks.request import MODEL
from openai_frontend.triton import Options, Server


def _bytes_tensor(text: str) -> tuple[str, tuple[int, ...], bytes]:
    data = text.encode()
    return "BYTES", (1,), struct.pack("<I", len(data)) + data


class CoreLoop:
    """A closed loop of streams, each of which starts anew when it ends."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._inputs = {
            "text_input": _bytes_tensor("How does a benchmark stay honest?"),
            "stream": ("BOOL", (1,), b"\x01"),
            "sampling_parameters": _bytes_tensor('{"max_tokens":256}'),
        }
        self.responses = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            stream = self._server.infer(MODEL, self._inputs)
            try:
                async for burst in stream:
                    self.responses += len(burst)
            finally:
                stream.cancel()


async def cpu_us_per_response(
    repository: Path, *, streams: int, warm_up_s: float, measured_s: float
) -> float:
    """CPU time of this process for each response that Python received."""
    server = Server(Options(model_repositories=[repository]))
    await server.start()
    loop = CoreLoop(server)
    tasks = [asyncio.create_task(loop.run()) for _ in range(streams)]
    try:
        await asyncio.sleep(warm_up_s)
        cpu_s, responses = time.process_time(), loop.responses
        await asyncio.sleep(measured_s)
        return (time.process_time() - cpu_s) / (loop.responses - responses) * 1e6
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


def main() -> None:
    """Arguments: repository, streams, seconds of warm-up and of measurement, core or -1."""
    repository, streams, warm_up_s, measured_s, core = sys.argv[1:]
    process_stat.pin(int(core) if int(core) >= 0 else None)
    measurement = cpu_us_per_response(
        Path(repository),
        streams=int(streams),
        warm_up_s=float(warm_up_s),
        measured_s=float(measured_s),
    )
    print(uvloop.run(measurement))


if __name__ == "__main__":
    main()
