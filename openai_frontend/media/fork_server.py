"""The process that a pool's workers are forked from; `run` is its function.

It imports what the work needs once, then forks a worker for each socket that it gets, in
milliseconds. A worker can open neither files nor sockets, and has a memory limit; it may crash or
hang, and is then replaced. The sender of a task enforces the time limit.

Messages of its socket (one per packet): to the parent, facts or an error as JSON; from the parent,
`fork` with a socket, answered with the process id, and `kill ID`, answered with the exit code.
"""

import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from openai_frontend.runtime.process_settings import end_with, keep_freed_memory, lower_priority

Frames = Sequence[Any]  # of bytes-like objects
Reply = tuple[Any, list[memoryview]]
Work = Callable[[Any, Frames], tuple[Any, Frames]]  # JSON and frames in, JSON and frames out

_MIB = 1 << 20
_NICENESS = 5
_RESERVE = 64 * _MIB  # to answer with, once the memory limit is reached
_HEAD = struct.Struct("<QII")  # the task's number, bytes of the JSON, and number of frames
_LENGTH = struct.Struct("<Q")  # of a frame


class PoolUnavailable(RuntimeError):
    """The pool is closed, or its process does not start."""


class Refused(ValueError):
    """The media cannot be used; the message is for the client."""


class MalformedMessage(Exception):
    """The other side does not follow the protocol; what it sends next is not to be read."""


def read_message(connection: Any, most_bytes: int) -> tuple[int, Any, list[memoryview]]:
    """Receive the task's number, JSON and frames of at most so many bytes in all.

    `connection` has socket's `recv_into`. Raises EOFError and MalformedMessage.
    """
    number, json_bytes, count = _HEAD.unpack(_read(connection, _HEAD.size))
    _check_bytes(json_bytes + count * _LENGTH.size, most_bytes)
    try:
        header = json.loads(bytes(_read(connection, json_bytes)))
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("not JSON") from error
    sizes = [size for (size,) in _LENGTH.iter_unpack(_read(connection, count * _LENGTH.size))]
    _check_bytes(json_bytes + sum(sizes), most_bytes)
    return number, header, [_read(connection, size) for size in sizes]


def _check_bytes(announced: int, most: int) -> None:
    if announced > most:
        raise MalformedMessage(f"announces {announced} bytes, at most {most}")


def _read(connection: Any, size: int) -> memoryview:
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        if not (received := connection.recv_into(data[done:])):
            raise EOFError("the other side closed the connection")
        done += received
    return data


def write_message(connection: Any, number: int, header: Any, frames: Frames = ()) -> None:
    """Send the task's number, JSON and frames."""
    encoded = json.dumps(header).encode()
    views = [memoryview(each).cast("B") for each in frames]
    sizes = b"".join(_LENGTH.pack(len(view)) for view in views)
    connection.sendall(_HEAD.pack(number, len(encoded), len(views)) + encoded + sizes)
    for view in views:
        connection.sendall(view)


def run(control: socket.socket, module: str, memory_mib: int, data: bytes) -> None:
    """Run the process. The module's `prepare` gets the data; it returns the facts and the work.

    The work raises Refused for media that cannot be used.
    """
    keep_freed_memory()
    try:
        facts, work = importlib.import_module(module).prepare(data)
    except Exception as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise
    control.send(json.dumps(facts).encode())
    _fork_workers(control, work, memory_mib)


def _fork_workers(control: socket.socket, work: Work, memory_mib: int) -> None:
    """Fork and kill workers until the parent closes the socket."""
    parent = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        verb, _, argument = message.decode().partition(" ")
        if verb == "kill":
            control.send(str(_killed(int(argument))).encode())
            continue
        with socket.socket(fileno=descriptors[0]) as connection:
            if (worker := os.fork()) == 0:
                end_with(parent)
                lower_priority(_NICENESS)
                control.close()
                _serve(connection, work, memory_mib)
        control.send(str(worker).encode())


def _killed(worker: int) -> int:
    """Return the exit code of a worker, which may have ended before."""
    try:
        os.kill(worker, signal.SIGKILL)  # not reaped yet, so the id is still its own
        _, status = os.waitpid(worker, 0)
    except (ProcessLookupError, ChildProcessError):
        return 0
    return os.waitstatus_to_exitcode(status)


def _serve(connection: socket.socket, work: Work, memory_mib: int) -> NoReturn:
    """Work until the connection ends."""
    memory = _limit(memory_mib)
    try:
        while True:
            number, header, given = read_message(connection, sys.maxsize)
            frames: Frames = ()
            try:
                outcome, frames = work(header, given)
            except Refused as error:
                outcome = {"refused": str(error)}
            except MemoryError:
                resource.setrlimit(resource.RLIMIT_AS, (memory + _RESERVE, memory + _RESERVE))
                outcome = {"refused": f"processing it needs more than {memory_mib} MiB"}
            del given
            write_message(connection, number, outcome, frames)
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory + _RESERVE))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  a fork must not return into its parent's code
        print(f"media worker failed: {type(error).__name__}", file=sys.stderr)  # noqa: T201
        os._exit(1)


def _limit(memory_mib: int) -> int:
    """Return the limit of the address space in bytes."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    memory = pages * resource.getpagesize() + memory_mib * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + _RESERVE))
    limits = {
        resource.RLIMIT_NOFILE: 0,  # open descriptors stay open
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, limit))
    return memory
