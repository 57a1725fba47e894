"""Prints by how many bytes this process grows from the middle of a run of requests to its end.

It runs in its own process: after other tests, a leak would fill memory that they freed.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from openai_frontend.triton import Options, Server
from tests import mock_models
from tests.core.triton.generation_inputs import generation

AT_ONCE = 50


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


async def growth(server: Server, requests: int, kept: list[Any] | None) -> int:
    """With a list, each burst is kept in it: a deliberate leak."""

    async def client(number: int) -> None:
        for _ in range(number):
            async for burst in server.infer("mock", generation(max_tokens=4)):
                if kept is not None:
                    kept.append(burst)

    half = requests // 2 // AT_ONCE
    await asyncio.gather(*(client(half) for _ in range(AT_ONCE)))
    middle = resident_bytes()
    await asyncio.gather(*(client(half) for _ in range(AT_ONCE)))
    return resident_bytes() - middle


async def main(requests: int, leaks: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Large tokens, so that a kept one is visible.
        mock_models.write(Path(folder), "mock", tokens=["x" * 1024])
        server = Server(Options(model_repositories=[Path(folder)]))
        await server.start()
        sys.stdout.write(str(await growth(server, requests, [] if leaks else None)))
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "leak"))
