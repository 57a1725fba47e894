"""Work that harms its process, for a `WorkerPool`."""

import os
import signal
import socket
import time
from typing import Any

from openai_frontend.media.fork_server import Frames, Refused, Work


def _work(header: Any, frames: Frames) -> tuple[Any, Frames]:
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
