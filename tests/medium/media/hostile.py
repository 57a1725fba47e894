"""Work that harms its process, or breaks the protocol of a `WorkerPool`."""

import gc
import inspect
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from openai_frontend.media.fork_server import Frames, Refused, Work


def _connection() -> socket.socket:
    """The worker's end of the pool's connection."""
    return next(
        each
        for each in gc.get_objects()
        if isinstance(each, socket.socket) and each.fileno() >= 0 and each.family == socket.AF_UNIX
    )


def _reply(number: int, json: bytes, *sizes: int, count: int | None = None) -> bytes:
    lengths = b"".join(struct.pack("<Q", size) for size in sizes)
    frames = len(sizes) if count is None else count
    return struct.pack("<QII", number, len(json), frames) + json + lengths


def _number() -> int:
    """The number of the task that runs, which the fork server's frame knows."""
    frame: Any = inspect.currentframe()
    while frame.f_code.co_name != "_serve":
        frame = frame.f_back
    number: int = frame.f_locals["number"]
    return number


# A task -> what the worker sends as its reply
REPLIES: dict[str, Callable[[int], bytes]] = {
    "not JSON": lambda number: _reply(number, b"{") + b"the rest",
    "not an object": lambda number: _reply(number, b"[1]"),
    "deeply nested": lambda number: _reply(number, b"[" * 100_000),
    "no object": lambda number: _reply(number, b"7"),
    "another task": lambda number: _reply(number ^ 1, b"{}"),
    "a huge frame": lambda number: _reply(number, b"{}", 1 << 62),
    "many frames": lambda number: _reply(number, b"{}", count=(1 << 32) - 1),
    "a huge header": lambda number: struct.pack("<QII", number, (1 << 32) - 1, 0),
    "frames beyond the limit": lambda number: _reply(number, b"{}", *[100 << 20] * 3),
    "a reason that is a number": lambda number: _reply(number, b'{"refused": 7}'),
    "a reason that is long": lambda number: _reply(number, b'{"refused": "%s"}' % (b"x" * 9999)),
    "a reason with a line break": lambda number: _reply(number, b'{"refused": "a\\nb"}'),
    "a form that the check refuses": lambda number: _reply(number, b'{"process": "x"}'),
}


def _work(header: Any, frames: Frames) -> tuple[Any, Frames]:
    if header in REPLIES:
        _connection().sendall(REPLIES[header](_number()))
        time.sleep(60)
    if header == "two replies":
        _connection().sendall(_reply(_number(), b'{"process": 1}'))
        return {"process": 2, "secret": "of the request before"}, frames
    return _harm(header, frames)


def _harm(header: Any, frames: Frames) -> tuple[Any, Frames]:
    match header:
        case "echo":
            return {"process": os.getpid()}, frames
        case "refuse":
            raise Refused("it is not wanted")
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raise":
            raise OSError("a secret path")
        case "hang":
            time.sleep(60)
        case "allocate":
            return {"bytes": len(bytearray(1 << 30))}, ()
        case "file":
            with open("/etc/hostname"):
                return {"opened": True}, ()
        case "socket":
            with socket.socket():
                return {"opened": True}, ()
    raise AssertionError(header)


def prepare(given: bytes) -> tuple[Any, Work]:
    return {"given": given.decode()}, _work
